"""Networks of many kinds in the sizes that are in use, with random weights: each function makes one that gives one
tensor."""

import diffusers
import transformers as tf
from torch import nn

from .zoo_models import Pixels, Sound, Text, shaken


class First(nn.Module):
    """A layer's first result."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Denoiser(nn.Module):
    """A noisy image and its step to the noise in it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = shaken(model)

    def forward(self, sample, timestep):
        return self.model(sample, timestep, return_dict=False)[0]


def vit() -> nn.Module:
    """ViT-B/16."""
    return Pixels(tf.ViTModel(tf.ViTConfig(), add_pooling_layer=False))


def resnet() -> nn.Module:
    """ResNet-50."""
    return Pixels(tf.ResNetModel(tf.ResNetConfig()))


def convnext() -> nn.Module:
    """ConvNeXt-tiny."""
    return Pixels(tf.ConvNextModel(tf.ConvNextConfig()))


def unet() -> nn.Module:
    """A denoiser of images of 64 × 64, of the kind that DDPM trains."""
    return Denoiser(
        diffusers.UNet2DModel(
            sample_size=64,
            block_out_channels=(64, 128, 256, 256),
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        )
    )


def lstm() -> nn.Module:
    """Two layers, 256 wide."""
    return First(shaken(nn.LSTM(256, 256, num_layers=2, batch_first=True)))


def whisper() -> nn.Module:
    """Whisper-tiny's encoder, for half a minute of sound."""
    config = tf.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, decoder_layers=1,
        decoder_attention_heads=6, decoder_ffn_dim=1536,
    )  # fmt: skip
    return Sound(tf.WhisperModel(config).encoder)


def bge() -> nn.Module:
    """The shape of BGE-small."""
    config = tf.BertConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
    )
    return Text(tf.BertModel(config, add_pooling_layer=False))
