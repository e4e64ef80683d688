"""Language models of `transformers`, a few layers each."""

from __future__ import annotations

from .catalogue import SEQUENCES, Architecture, Input, mask, tokens

SMALL = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
DECODER = dict(SMALL, max_position_embeddings=128, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def called(model, names, pick):
    """A module that takes `names` in order and gives a tuple of tensors."""
    from torch import nn

    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *arrays):
            result = pick(self.model(**dict(zip(names, arrays))))
            return result if isinstance(result, tuple) else (result,)

    return Called().eval()


def first(result):
    return result[0]


def of(cls, config, names=("input_ids", "attention_mask"), pick=first, part=None, **settings):
    """A builder: `part` names what is taken of the model, for encoders and the like."""
    def build():
        import transformers
        model = getattr(transformers, cls)(getattr(transformers, config)(**settings)).eval()
        return called(getattr(model, part) if part else model, names, pick)
    build.config = config
    return build


def text(name, cls, config, quantise=(), family="language", **settings):
    return Architecture(name, family, of(cls, config, **settings), (tokens(), mask()), SEQUENCES, quantise)


def gpt2_with_past():
    import torch
    import transformers
    from transformers.cache_utils import DynamicCache
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=99, n_positions=128, n_embd=32, n_layer=2, n_head=4)).eval()

    class WithPast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *arrays):
            ids, attention_mask, k0, v0, k1, v1 = arrays
            cache = DynamicCache()
            cache.update(k0, v0, 0)
            cache.update(k1, v1, 1)
            # The positions are given: left to itself the model counts from zero where it is traced.
            places = attention_mask.cumsum(-1)[:, -ids.shape[1]:] - 1
            result = self.model(input_ids=ids, attention_mask=attention_mask, position_ids=places,
                                past_key_values=cache, use_cache=True)
            now = [tensor for layer in result.past_key_values.layers for tensor in (layer.keys, layer.values)]
            return (result.logits, *now)

    return WithPast().eval()


def past(name):
    return Input(name, ("batch", 4, "past", 8))


def decoder(name, cls, config, family="language", quantise=(), **settings):
    return text(name, cls, config, quantise, family, **{**DECODER, **settings})


def cross(name, cls, config, hidden, memory="encoder_hidden_states", **settings):
    """The decoder of a sequence-to-sequence model, given what its encoder made."""
    return Architecture(
        name, "language", of(cls, config, ("input_ids", memory), part="decoder", **settings),
        (tokens(), Input(memory, ("batch", "source", hidden))),
        ({"batch": 1, "sequence": 5, "source": 16}, {"batch": 2, "sequence": 9, "source": 7},
         {"batch": 3, "sequence": 4, "source": 20}))


T5 = dict(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4, use_cache=False)
BART = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=128,
            use_cache=False)

ARCHITECTURES = [
    text("bert", "BertModel", "BertConfig", ("dynamic",), **SMALL),
    text("bert_classifier", "BertForSequenceClassification", "BertConfig", **SMALL),
    text("bert_qa", "BertForQuestionAnswering", "BertConfig", pick=lambda r: (r[0], r[1]), **SMALL),
    text("roberta", "RobertaModel", "RobertaConfig", ("dynamic",), **SMALL, pad_token_id=1, max_position_embeddings=130),
    text("deberta_v2", "DebertaV2Model", "DebertaV2Config", **SMALL, relative_attention=True,
         pos_att_type=["p2c", "c2p"], max_relative_positions=64, position_buckets=16, norm_rel_ebd="layer_norm",
         share_att_key=True, position_biased_input=False),
    text("electra", "ElectraModel", "ElectraConfig", **SMALL, embedding_size=16),
    text("albert", "AlbertModel", "AlbertConfig", **SMALL, embedding_size=16),
    text("mpnet", "MPNetModel", "MPNetConfig", **SMALL, max_position_embeddings=130, pad_token_id=1),
    text("distilbert", "DistilBertModel", "DistilBertConfig", ("dynamic",), vocab_size=99, dim=32, n_layers=2, n_heads=4,
         hidden_dim=64),
    text("squeezebert", "SqueezeBertModel", "SqueezeBertConfig", **SMALL, embedding_size=32),
    text("mobilebert", "MobileBertModel", "MobileBertConfig", **SMALL, embedding_size=32, intra_bottleneck_size=32),
    text("xlm_roberta_tokens", "XLMRobertaForTokenClassification", "XLMRobertaConfig", **SMALL, pad_token_id=1,
         max_position_embeddings=130),
    text("modernbert", "ModernBertModel", "ModernBertConfig", **SMALL, pad_token_id=0, global_attn_every_n_layers=2,
         local_attention=8),
    Architecture("gpt2_past", "language", gpt2_with_past,
                 (tokens(), mask(dim="total"), past("key_0"), past("value_0"), past("key_1"), past("value_1")),
                 ({"batch": 1, "sequence": 1, "past": 8, "total": 9}, {"batch": 2, "sequence": 3, "past": 5, "total": 8},
                  {"batch": 3, "sequence": 1, "past": 20, "total": 21})),
    text("gpt2", "GPT2LMHeadModel", "GPT2Config", ("dynamic",), vocab_size=99, n_positions=128, n_embd=32, n_layer=2,
         n_head=4, use_cache=False),
    decoder("llama", "LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, quantise=("dynamic",)),
    decoder("mistral", "MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=16),
    decoder("qwen2", "Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
    decoder("qwen3", "Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8),
    decoder("phi", "PhiForCausalLM", "PhiConfig"),
    decoder("gemma", "GemmaForCausalLM", "GemmaConfig", num_key_value_heads=1, head_dim=8),
    decoder("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig"),
    decoder("opt", "OPTForCausalLM", "OPTConfig", ffn_dim=64, word_embed_proj_dim=32),
    text("bloom", "BloomForCausalLM", "BloomConfig", vocab_size=99, hidden_size=32, n_layer=2, n_head=4, use_cache=False),
    text("falcon", "FalconForCausalLM", "FalconConfig", vocab_size=99, hidden_size=32, num_hidden_layers=2,
         num_attention_heads=4, use_cache=False, alibi=False),
    Architecture("mamba", "language", of("MambaForCausalLM", "MambaConfig", ("input_ids",), vocab_size=99, hidden_size=32,
                                         num_hidden_layers=2, state_size=8, use_cache=False, use_mambapy=False),
                 (tokens(),), ({"batch": 1, "sequence": 16}, {"batch": 2, "sequence": 16}, {"batch": 3, "sequence": 16})),
    Architecture("t5_encoder", "language", of("T5EncoderModel", "T5Config", **T5), (tokens(), mask()), SEQUENCES,
                 ("dynamic",)),
    cross("t5_decoder", "T5Model", "T5Config", 32, **T5),
    Architecture("bart_encoder", "language", of("BartModel", "BartConfig", part="encoder", **BART), (tokens(), mask()),
                 SEQUENCES),
    cross("bart_decoder", "BartModel", "BartConfig", 32, **BART),
]
