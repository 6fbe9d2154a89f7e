/* Norms of groups of channels, of images that lie in channels-last: a row of channels for each place. Some places at a time
   have their own means, and squares of what differs from them, which are put together afterwards (Chan, Golub and
   LeVeque): a sum of squares less the square of a sum would lose what differs little. */

#define PLACES 64 /* at a time, or fewer: no more numbers than are held at once */

struct NAME(images) {
    const struct step *step;
    int64_t places, channels, groups; /* of an image */
    int64_t together, parts;          /* places of a part, and parts of an image */
    float *mean, *squares;            /* of each part of each image, channel by channel */
    float *centre, *factor, *term;    /* of each image, channel by channel: (x - centre) * factor + term */
};

static inline int64_t NAME(places_of)(const struct NAME(images) * images, int64_t part)
{
    const int64_t rest = images->places - part * images->together;
    return rest < images->together ? rest : images->together;
}

/* Where the numbers of a part begin. */
static inline int64_t NAME(start_of)(const struct NAME(images) * images, int64_t unit)
{
    const int64_t place = unit / images->parts * images->places + unit % images->parts * images->together;
    return place * images->channels;
}

/* The means of so many times 16 channels, and the squares of what differs from them. */
static inline __attribute__((always_inline)) void NAME(moments_by)(const float *x, int64_t count, int64_t channels,
                                                                   const int parts, float *mean, float *squares)
{
    NAME(lanes) sums[4] = {{0}}, all[4] = {{0}};
    for (int64_t row = 0; row < count; row++)
        #pragma GCC unroll 4
        for (int i = 0; i < parts; i++) sums[i] += ((const NAME(lanes) *)(x + row * channels))[i];
    #pragma GCC unroll 4
    for (int i = 0; i < parts; i++) sums[i] /= (float)count;
    for (int64_t row = 0; row < count; row++)
        #pragma GCC unroll 4
        for (int i = 0; i < parts; i++) {
            const NAME(lanes) apart = ((const NAME(lanes) *)(x + row * channels))[i] - sums[i];
            all[i] += apart * apart;
        }
    #pragma GCC unroll 4
    for (int i = 0; i < parts; i++) ((NAME(lanes) *)mean)[i] = sums[i], ((NAME(lanes) *)squares)[i] = all[i];
}

/* The same of each channel in a part. */
static void NAME(moments)(const struct NAME(images) * images, int64_t unit)
{
    const int64_t count = NAME(places_of)(images, unit % images->parts), channels = images->channels;
    const struct operand *read = images->step->operand + 1;
    float held[ROW], *mean = images->mean + unit * channels, *squares = images->squares + unit * channels;
    const float *x = NAME(load)(read->data, read->type, NAME(start_of)(images, unit), 1, count * channels, held);
    int64_t i = 0;
    for (; i + 64 <= channels; i += 64) NAME(moments_by)(x + i, count, channels, 4, mean + i, squares + i);
    for (; i + 16 <= channels; i += 16) NAME(moments_by)(x + i, count, channels, 1, mean + i, squares + i);
    for (; i < channels; i++) {
        float sum = 0, all = 0;
        for (int64_t row = 0; row < count; row++) sum += x[row * channels + i];
        mean[i] = sum / (float)count;
        for (int64_t row = 0; row < count; row++)
            all += (x[row * channels + i] - mean[i]) * (x[row * channels + i] - mean[i]);
        squares[i] = all;
    }
}

/* What a group of an image is multiplied by, and what is added to it. */
static void NAME(factors_of)(const struct NAME(images) * images, int64_t unit)
{
    const struct operand *weight = images->step->operand + 2, *bias = weight + 1;
    const int64_t image = unit / images->groups, width = images->channels / images->groups;
    const int64_t start = unit % images->groups * width;
    const double count = (double)(images->places * width);
    double mean = 0, squares = 0;
    for (int64_t part = 0; part < images->parts; part++) {
        const float *means = images->mean + (image * images->parts + part) * images->channels + start;
        double sum = 0;
        for (int64_t i = 0; i < width; i++) sum += means[i];
        mean += sum * (double)NAME(places_of)(images, part) / count;
    }
    for (int64_t part = 0; part < images->parts; part++) {
        const int64_t place = (image * images->parts + part) * images->channels + start;
        double own = 0, apart = 0;
        for (int64_t i = 0; i < width; i++) {
            own += images->squares[place + i];
            apart += (images->mean[place + i] - mean) * (images->mean[place + i] - mean);
        }
        squares += own + apart * (double)NAME(places_of)(images, part);
    }
    const float root = (float)(1.0 / __builtin_sqrt(squares / count + images->step->number)), most = (float)mean;
    for (int64_t i = start; i < start + width; i++) {
        float one = 1, other = 0;
        if (weight->data)
            one = *NAME(load)(weight->data, weight->type, i, 1, 1, &one);
        if (bias->data)
            other = *NAME(load)(bias->data, bias->type, i, 1, 1, &other);
        images->centre[image * images->channels + i] = most;
        images->factor[image * images->channels + i] = one * root;
        images->term[image * images->channels + i] = other - (float)(mean - most) * (one * root);
    }
}

/* The numbers of a part. */
static void NAME(norms_of)(const struct NAME(images) * images, int64_t unit)
{
    const struct operand *to = images->step->operand, *read = to + 1;
    const int64_t count = NAME(places_of)(images, unit % images->parts), start = NAME(start_of)(images, unit);
    const int64_t channels = images->channels, own = unit / images->parts * channels;
    const float *centre = images->centre + own, *factor = images->factor + own, *term = images->term + own;
    float held[ROW], made[ROW], *into = to->type == F32 ? (float *)to->data + start : made;
    const float *x = NAME(load)(read->data, read->type, start, 1, count * channels, held);
    for (int64_t row = 0; row < count * channels; row += channels) {
        #pragma GCC ivdep
        for (int64_t i = 0; i < channels; i++) into[row + i] = (x[row + i] - centre[i]) * factor[i] + term[i];
    }
    if (images->step->whole[0])
        NAME(compute)(SILU, into, into, 0, count * channels);
    if (into == made)
        NAME(store)(to->data, to->type, start, 1, count * channels, made);
}

/* Operands: result and x (images, places, channels) without gaps, weight and bias (channels,), each without memory where
   there is none. size: images, places, channels, groups; number: what is added to the variance; whole[0]: whether SILU
   follows. Whether there was memory for what is made on the way. */
static int NAME(group_norm)(const struct step *step, int threads)
{
    const int64_t *size = step->size, together = ROW / size[2] < PLACES ? ROW / size[2] : PLACES;
    const int64_t parts = (size[1] + together - 1) / together, units = size[0] * parts;
    struct NAME(images) images = {step, size[1], size[2], size[3], together, parts, .mean = 0};
    float *memory = malloc((2 * units + 3 * size[0]) * size[2] * sizeof(float));
    if (!memory)
        return 0;
    images.mean = memory, images.squares = memory + units * size[2];
    images.centre = images.squares + units * size[2], images.factor = images.centre + size[0] * size[2];
    images.term = images.factor + size[0] * size[2];
    #pragma omp parallel num_threads(threads) if (threads > 1 && size[0] * size[1] * size[2] > GRAIN / 2)
    {
        #pragma omp for schedule(static)
        for (int64_t unit = 0; unit < units; unit++) NAME(moments)(&images, unit);
        #pragma omp for schedule(static)
        for (int64_t unit = 0; unit < size[0] * size[3]; unit++) NAME(factors_of)(&images, unit);
        #pragma omp for schedule(static)
        for (int64_t unit = 0; unit < units; unit++) NAME(norms_of)(&images, unit);
    }
    free(memory);
    return 1;
}
