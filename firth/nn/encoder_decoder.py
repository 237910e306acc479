"""The encoder-decoder (Vaswani et al. 2017, figure 1): an encoder reads a source, a decoder writes a target.

In: a packed batch of targets, each with its source. Out: the decoder's states, which know the whole source and the
target up to their own token. A batch without a source is read by the encoder stack alone, in both directions, so that
an encoder-decoder also classifies, tags and embeds. The shapes in `encoders/` (the original, T5, BART) differ in what
their two stacks are made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import linear

from firth.errors import BadConfig, BadInput
from firth.nn.attention import Bias, Source
from firth.nn.blocks import Block, DecoderBlock, compute_dtype
from firth.nn.dropout import Dropout
from firth.nn.kv_cache import KeyValueCache, LayerCache
from firth.nn.layout import Layout, layout
from firth.nn.likelihood import summed_cross_entropy
from firth.nn.relative_positions import RelativePositions
from firth.nn.transformer import TransformerConfig
from firth.tensors import Batch, Encoder, States


@dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    num_layers: int = 6
    """Blocks of the encoder stack."""
    decoder_layers: int = 0
    """Blocks of the decoder; 0: as many as the encoder stack has."""
    start_token: int | None = None
    """The id with which every target begins; unset: the vocabulary's [CLS]."""
    tied_output: bool = True
    """Whether the output layer's matrix is the input embedding; otherwise it has its own."""
    output_bias: bool = False
    """Whether every token of the vocabulary has a bias in the output layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_layers < 0:
            raise BadConfig("decoder_layers must be at least 0.")
        if self.start_token is not None and not 0 <= self.start_token < self.vocab_size:
            raise BadConfig(f"start_token is {self.start_token}, but the vocabulary has {self.vocab_size} tokens.")

    @property
    def num_decoder_layers(self) -> int:
        return self.decoder_layers or self.num_layers

    @property
    def table_width(self) -> int:
        """Columns of the input embedding."""
        return self.width

    @property
    def output_scale(self) -> float:
        """What the decoder's states are multiplied by before the output layer."""
        return 1.0


@dataclass
class CollectedOutputs:
    """What a pass through a stack's blocks keeps for the caller."""

    layers: list[Tensor] = field(default_factory=list)
    attention: list[tuple[Tensor, ...]] = field(default_factory=list)
    cross_attention: list[tuple[Tensor, ...]] = field(default_factory=list)
    wants_layers: bool = False
    wants_attention: bool = False


class TransformerStack(nn.Module):
    """The blocks of an encoder or a decoder: embedded tokens -> first states -> blocks -> final norm."""

    causal: ClassVar[bool]

    def __init__(
        self,
        embed: nn.Module,
        blocks: Sequence[nn.Module],
        *,
        norm: nn.Module | None = None,
        relative: RelativePositions | None = None,
        final_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = embed
        """Embedded tokens and their positions -> the first states."""
        self.relative = relative
        """Adds a bias to the scores of self-attention, the same in all blocks."""
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm or nn.Identity()
        self.final_dropout = Dropout(final_dropout)

    def _bias(self, queries: Layout, keys: Layout) -> Bias | None:
        if self.relative is None or not len(self.blocks):
            return None
        bias = self.relative.bias(max(queries.max_length, keys.max_length))
        attention = self.blocks[0].attention
        bias.prepare(queries, keys, causal=self.causal, head_width=attention.head_width)  # type: ignore[union-attr,arg-type]
        return bias


class EncoderStack(TransformerStack):
    """Reads a source in both directions."""

    causal = False

    def forward(self, tokens_NE: Tensor, positions_N: Tensor, plan: Layout, collected: CollectedOutputs) -> Tensor:
        x_ND: Tensor = self.embed(tokens_NE, positions_N)
        bias = self._bias(plan, plan)
        for block in self.blocks:
            assert isinstance(block, Block)
            if collected.wants_attention:
                collected.attention.append(block.weights(x_ND, plan, bias=bias))
            if collected.wants_layers:
                collected.layers.append(x_ND)
            x_ND = block(x_ND, plan, bias=bias)
        x_ND = self.final_dropout(self.norm(x_ND))
        if collected.wants_layers:
            collected.layers.append(x_ND)
        return x_ND


class DecoderStack(TransformerStack):
    """Writes a target: a token sees the tokens before it and the whole source."""

    causal = True

    def forward(
        self,
        tokens_NE: Tensor,
        positions_N: Tensor,
        plan: Layout,
        source: Source | None,
        collected: CollectedOutputs,
        *,
        caches: Sequence[LayerCache] = (),
    ) -> Tensor:
        x_ND: Tensor = self.embed(tokens_NE, positions_N)
        layout_k = caches[0].layout_k if caches else plan
        bias = self._bias(plan, layout_k)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, DecoderBlock)
            cache = caches[layer] if caches else None
            if collected.wants_attention:
                collected.attention.append(block.weights(x_ND, plan, bias=bias, cache=cache))
                collected.cross_attention.append(block.cross_weights(x_ND, plan, source, bias=bias, cache=cache))
            if collected.wants_layers:
                collected.layers.append(x_ND)
            x_ND = block(x_ND, plan, source, bias=bias, cache=cache)
        x_ND = self.final_dropout(self.norm(x_ND))
        if collected.wants_layers:
            collected.layers.append(x_ND)
        return x_ND


class EncoderDecoder(Encoder):
    supports_cache = True
    shows_attention = True
    reads_source = True
    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, *, encoder: EncoderStack, decoder: DecoderStack) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.num_layers = config.num_layers
        self.tokens = nn.Embedding(config.vocab_size, config.table_width)
        self.encoder = encoder
        self.decoder = decoder
        self.narrow: nn.Module = nn.Identity()
        self.output = None
        if not config.tied_output:
            self.output = nn.Linear(config.width, config.vocab_size, bias=False)
        elif config.table_width != config.width:
            self.narrow = nn.Linear(config.width, config.table_width)
        self.output_bias_V = None
        if config.output_bias:
            self.output_bias_V = nn.Parameter(self.tokens.weight.new_zeros(config.vocab_size))

    @property
    def num_decoder_layers(self) -> int:
        return self.config.num_decoder_layers

    @property
    def table_width(self) -> int:
        return self.config.table_width

    def start_token(self, cls: int) -> int:
        """The id with which targets begin: the config's, or else the vocabulary's [CLS]."""
        return cls if self.config.start_token is None else self.config.start_token

    def encode_source(self, source: Batch) -> Source:
        """The states of the encoder stack."""
        plan = self._layout(source)
        states_SD = self.encoder(self.tokens(source.ids_N), source.positions_N, plan, CollectedOutputs())
        return Source(states_SD, plan)

    def forward(
        self,
        batch: Batch,
        *,
        layers: bool = False,
        attention: bool = False,
        cache: KeyValueCache | None = None,
        source: Source | None = None,
    ) -> States:
        """Given a `source`, the batch's own is not encoded; a cache needs it in the first pass only."""
        collected = CollectedOutputs(wants_layers=layers, wants_attention=attention)
        if source is None and batch.source is not None:
            source = self.encode_source(batch.source)
        if source is None and cache is None:
            return self._read(batch, collected)
        if source is None and cache is not None and cache.source_layout is None:
            raise BadInput("The first pass with a cache needs a source.")
        plan = self._layout(batch)
        caches: Sequence[LayerCache] = ()
        if cache is not None:
            plan, caches = cache.read(plan)
        tokens_NE = self.tokens(batch.ids_N)
        x_ND = self.decoder(tokens_NE, batch.positions_N, plan, source, collected, caches=caches)
        table_VE = self.tokens.weight if self.output is None else self.output.weight
        return States(
            x_ND,
            table_VE,
            layers=tuple(collected.layers),
            attention=tuple(collected.attention),
            cross_attention=tuple(collected.cross_attention),
            source=source,
            output_NE=self.narrow(x_ND) * self.config.output_scale,
            output_bias_V=self.output_bias_V,
        )

    def _read(self, batch: Batch, collected: CollectedOutputs) -> States:
        """The encoder stack alone, over a batch that has no source."""
        x_ND = self.encoder(self.tokens(batch.ids_N), batch.positions_N, self._layout(batch), collected)
        return States(x_ND, self.tokens.weight, layers=tuple(collected.layers), attention=tuple(collected.attention))

    def _layout(self, batch: Batch) -> Layout:
        return layout(batch, dtype=compute_dtype(self.tokens.weight))


def output_scores(states: States, rows_P: Tensor | None = None) -> Tensor:
    """The scores of all tokens of the vocabulary after these tokens of a target (or all): P x V."""
    x_PE = _before_output(states)
    if rows_P is not None:
        x_PE = x_PE[rows_P]
    return linear(x_PE, states.table_VD, states.output_bias_V)


def output_loss(states: States, labels_N: Tensor, *, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The cross-entropy summed over all labels but IGNORE, and how many of them have the highest score."""
    return summed_cross_entropy(
        _before_output(states), states.table_VD, states.output_bias_V, labels_P=labels_N, smoothing=smoothing
    )


def _before_output(states: States) -> Tensor:
    assert states.output_NE is not None, "only the states of an encoder-decoder that read a source have an output"
    return states.output_NE
