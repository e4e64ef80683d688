"""Models of `transformers` that see and hear."""

from __future__ import annotations

from .catalogue import BATCHES, IMAGES, Architecture, Input, image, tokens
from .language import of

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
PIXELS = ("pixel_values",)


def fixed(name, cls, config, side=32, quantise=(), **settings):
    """Images of one size; the batch varies."""
    return Architecture(name, "vision", of(cls, config, PIXELS, **settings), (image(side=side),), BATCHES, quantise)


def free(name, cls, config, sizes=IMAGES, quantise=(), **settings):
    """Images of any size."""
    return Architecture(name, "vision", of(cls, config, PIXELS, **settings), (image(),), sizes, quantise)


def detr():
    import torch
    import transformers
    from .language import called
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
                                                  out_features=["stage4"]),
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=10)
    torch.manual_seed(0)
    return called(transformers.DetrForObjectDetection(config).eval(), PIXELS, lambda r: (r.logits, r.pred_boxes))


detr.config = "DetrConfig"

CLIP_TEXT = dict(SMALL, vocab_size=99, max_position_embeddings=64, eos_token_id=98, bos_token_id=0, pad_token_id=1)
CLIP_VISION = dict(SMALL, image_size=32, patch_size=8)
WAV = dict(SMALL, vocab_size=32, conv_dim=(16, 16, 16), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3),
           num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, num_feat_extract_layers=3)
WHISPER = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
               decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=20,
               max_source_positions=50, max_target_positions=40, use_cache=False, pad_token_id=0, bos_token_id=1,
               eos_token_id=2, decoder_start_token_id=3)
SOUND = ({"batch": 1, "samples": 1600}, {"batch": 2, "samples": 2000}, {"batch": 3, "samples": 999})


def sound(name, cls, config, **settings):
    return Architecture(name, "audio", of(cls, config, ("input_values",), **settings),
                        (Input("input_values", ("batch", "samples")),), SOUND)


ARCHITECTURES = [
    fixed("vit", "ViTForImageClassification", "ViTConfig", **SMALL, image_size=32, patch_size=8, quantise=("dynamic", "qdq")),
    fixed("deit", "DeiTModel", "DeiTConfig", **SMALL, image_size=32, patch_size=8),
    fixed("beit", "BeitModel", "BeitConfig", **SMALL, image_size=32, patch_size=8, vocab_size=99),
    fixed("dinov2", "Dinov2Model", "Dinov2Config", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32,
          patch_size=8),
    fixed("swin", "SwinModel", "SwinConfig", side=64, image_size=64, patch_size=4, embed_dim=16, depths=[2, 2],
          num_heads=[2, 4], window_size=4),
    fixed("swin_v2", "Swinv2Model", "Swinv2Config", side=64, image_size=64, patch_size=4, embed_dim=16, depths=[2, 2],
          num_heads=[2, 4], window_size=4),
    fixed("yolos", "YolosForObjectDetection", "YolosConfig", **SMALL, image_size=[32, 32], patch_size=8,
          num_detection_tokens=5, pick=lambda r: (r.logits, r.pred_boxes)),
    fixed("levit", "LevitModel", "LevitConfig", side=64, image_size=64, hidden_sizes=[16, 32, 48], num_attention_heads=[2, 4, 4],
          depths=[1, 1, 1], key_dim=[8, 8, 8]),
    fixed("mobilevit", "MobileViTModel", "MobileViTConfig", side=64, image_size=64, hidden_sizes=[16, 24, 32],
          neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_attention_heads=4),
    free("convnext", "ConvNextModel", "ConvNextConfig", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], quantise=("qdq",)),
    free("convnext_v2", "ConvNextV2Model", "ConvNextV2Config", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    free("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", hidden_sizes=[8, 16, 24, 32],
         depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32, num_labels=7),
    free("poolformer", "PoolFormerModel", "PoolFormerConfig", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    free("regnet", "RegNetModel", "RegNetConfig", embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 2, 1],
         groups_width=8),
    free("resnet_hf", "ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16, 24, 32],
         depths=[1, 1, 1, 1]),
    Architecture("detr", "vision", detr, (image(),), IMAGES),
    Architecture("clip", "multimodal",
                 of("CLIPModel", "CLIPConfig", ("input_ids", "pixel_values", "attention_mask"),
                    lambda r: (r.logits_per_image, r.text_embeds, r.image_embeds), text_config=CLIP_TEXT,
                    vision_config=CLIP_VISION, projection_dim=16),
                 (Input("input_ids", ("texts", "sequence"), "tokens", 98), Input("pixel_values", ("images", 3, 32, 32)),
                  Input("attention_mask", ("texts", "sequence"), "mask")),
                 ({"texts": 1, "images": 1, "sequence": 9}, {"texts": 3, "images": 2, "sequence": 5},
                  {"texts": 2, "images": 4, "sequence": 16})),
    Architecture("clip_vision", "vision", of("CLIPVisionModel", "CLIPVisionConfig", PIXELS, **CLIP_VISION),
                 (image(side=32),), BATCHES),
    Architecture("siglip_vision", "vision", of("SiglipVisionModel", "SiglipVisionConfig", PIXELS, **CLIP_VISION),
                 (image(side=32),), BATCHES),
    sound("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", **WAV),
    sound("hubert", "HubertModel", "HubertConfig", **WAV),
    Architecture("whisper_encoder", "audio",
                 of("WhisperModel", "WhisperConfig", ("input_features",), part="encoder", **WHISPER),
                 (Input("input_features", ("batch", 20, 100)),), BATCHES),
    Architecture("whisper_decoder", "audio",
                 of("WhisperModel", "WhisperConfig", ("input_ids", "encoder_hidden_states"), part="decoder", **WHISPER),
                 (tokens(), Input("encoder_hidden_states", ("batch", 50, 32))),
                 ({"batch": 1, "sequence": 5}, {"batch": 2, "sequence": 9}, {"batch": 3, "sequence": 2})),
    Architecture("audio_spectrogram", "audio",
                 of("ASTModel", "ASTConfig", ("input_values",), **SMALL, patch_size=8, frequency_stride=8, time_stride=8,
                    max_length=64, num_mel_bins=32),
                 (Input("input_values", ("batch", 64, 32)),), BATCHES),
]
