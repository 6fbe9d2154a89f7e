/* How large is an element of each of HCCL's types, and how are two of them reduced? */
#include <string.h>
#include "hccl.h"

enum { INT8, INT16, INT32, FLOAT16, FLOAT32, INT64, UINT64, UINT8, UINT16, UINT32, FLOAT64, BFLOAT16, TYPES };
enum { E4M3 = 15, E5M2 = 16 };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, REDUCTIONS };
static const struct { size_t size; const char *name; } types[TYPES] = {
  {1, "int8"}, {2, "int16"}, {4, "int32"}, {2, "float16"}, {4, "float32"}, {8, "int64"}, {8, "uint64"}, {1, "uint8"},
  {2, "uint16"}, {4, "uint32"}, {8, "float64"}, {2, "bfloat16"},
};

size_t size_of_type(int type) { /* 0: there is no such type */
  if (type == E4M3 || type == E5M2) return 1;
  return type >= 0 && type < TYPES ? types[type].size : 0;
}
const char *name_of_type(int type) {
  if (type == E4M3) return "float8_e4m3";
  if (type == E5M2) return "float8_e5m2";
  return type >= 0 && type < TYPES ? types[type].name : "an unknown type";
}
const char *name_of_reduction(int reduction) {
  static const char *names[REDUCTIONS] = {"sum", "prod", "max", "min"};
  return reduction >= 0 && reduction < REDUCTIONS ? names[reduction] : "an unknown reduction";
}

/* The 910B reduces these, and multiplies no int16 and no bfloat16. */
bool reduces(int type, int reduction) {
  if (reduction < 0 || reduction >= REDUCTIONS) return false;
  if (reduction == PRODUCT && (type == INT16 || type == BFLOAT16)) return false;
  return (type >= INT8 && type <= INT64) || type == BFLOAT16;
}

static float from_bfloat16(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}
static uint16_t to_bfloat16(float value) { /* to the nearest, ties to even */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#define ONE(a, b) (reduction == SUM ? (a) + (b) : reduction == PRODUCT ? (a) * (b) \
                   : reduction == MAXIMUM ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
#define REDUCE_AS(element) \
  do { \
    element *a = to; \
    const element *b = from; \
    for (uint64_t i = 0; i < count; i++) a[i] = (element)ONE(a[i], b[i]); \
  } while (0)

static void reduce_bfloat16(int reduction, uint16_t *to, const uint16_t *from, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    float a = from_bfloat16(to[i]), b = from_bfloat16(from[i]);
    to[i] = to_bfloat16(ONE(a, b));
  }
}

/* Each step is rounded to the type, as in a device that reduces while it copies. Integers wrap. */
void reduce_into(int type, int reduction, void *to, const void *from, uint64_t count) {
  if (type == INT8) REDUCE_AS(int8_t);
  if (type == INT16) REDUCE_AS(int16_t);
  if (type == INT32) REDUCE_AS(int32_t);
  if (type == INT64) REDUCE_AS(int64_t);
  if (type == FLOAT16) REDUCE_AS(_Float16);
  if (type == FLOAT32) REDUCE_AS(float);
  if (type == BFLOAT16) reduce_bfloat16(reduction, to, from, count);
}
