"""The programs of a study, lowered and compiled for chips that this machine does not have.

libtpu compiles for a slice without its hardware, and XLA's GPU compiler for a GPU. Whether a
program fits the memory of a chip, and what it costs, is thus known before a chip is rented.
"""

import contextlib
import dataclasses
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from infra.chips.gpu_target import GPU_DEVICES, target_config
from infra.chips.program_cost import ProgramCost, read_program_cost
from infra.chips.topology import GIB, Topology
from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.config import ModelConfig
from model.connector import budgets
from model.decode.config import Decoding
from model.decode.decoding import decode_tokens, draw_key
from model.decode.generate import EOS
from model.sharding import param_dtype
from model.train.config import ProgramConfig
from model.train.step import (
    StepPrograms,
    abstract_inputs,
    abstract_state,
    compiler_options,
    mesh_of,
)


class ProgramTooLargeError(Exception):
    """A program asks for more memory than a chip has.

    Attributes:
      needed_bytes: memory per chip that the program needs.
    """

    def __init__(self, needed_bytes: float) -> None:
        super().__init__(f"asks for {needed_bytes / GIB:.1f} GiB a chip")
        self.needed_bytes = needed_bytes


def parse_needed_bytes(error: str) -> float | None:
    """Returns the memory per chip that libtpu's error says a program needs; None if it names none.

    Far above the limit, libtpu names only the temporaries.
    """
    match = re.search(r"Used ([\d.]+)G of [\d.]+G hbm|HLO temporaries \(([\d.]+)G\)", error)
    return float(match[1] or match[2]) * GIB if match else None


class CompiledProgram(typing.NamedTuple):
    """A program compiled for chips.

    Attributes:
      argument_bytes: size of its arguments, such as parameters, moments and batch, on each chip.
      peak_bytes: the most memory in use at a time, on each chip.
      cost: cost of one run, on each chip.
    """

    argument_bytes: float
    peak_bytes: float
    cost: ProgramCost


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """A program lowered for chips, not yet compiled.

    Attributes:
      lowered: JAX's form of it.
      topology: the chips that compute it together.
      open_trips: iterations assumed for a loop whose bound is known only at run time.
      options: options of the compiler.
    """

    lowered: jax.stages.Lowered
    topology: Topology
    open_trips: int
    options: Mapping[str, bool | str]

    @property
    def text(self) -> str:
        """The program's text; equal computations have equal texts."""
        return self.lowered.as_text()

    def compile(self) -> CompiledProgram:
        """Compiles the program and returns its memory and cost on each chip; takes minutes.

        Raises:
          ProgramTooLargeError: if a TPU's compiler refuses it because it does not fit.
        """
        # A program that does not fit is an error of libtpu, which says how much it asked for. A
        # GPU's compiler compiles it, and the figure for its memory is above what there is.
        try:
            compiled = self.lowered.compile(compiler_options=dict(self.options))
        except jax.errors.JaxRuntimeError as error:
            if (num_bytes := parse_needed_bytes(str(error))) is not None:
                raise ProgramTooLargeError(num_bytes) from None
            raise
        memory: typing.Any = compiled.memory_analysis()
        # Some loops end by a condition of their own, such as that over the chunks of the loss that
        # have a target; the most is all of them.
        cost = read_program_cost(
            compiled.as_text() or "", self.topology, open_trips=self.open_trips
        )
        return CompiledProgram(memory.argument_size_in_bytes, memory.peak_memory_in_bytes, cost)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainProgram:
    """One training update.

    Attributes:
      model: config of the model to train.
      train: the training recipe; a number as `pack` is the program with packed texts.
      tokens: slots for soft tokens, per image.
      num_images: images per example.
      deterministic: whether programs of a GPU give the same bits each time.
    """

    model: ModelConfig
    train: ProgramConfig
    tokens: int
    num_images: int = 1
    deterministic: bool = True

    def lower(self, topology: Topology) -> LoweredProgram:
        """Returns it lowered for chips, from shapes alone.

        Raises:
          RuntimeError: as `devices_of`.
          ValueError: if the chips do not divide the batch.
        """
        model, train = self.model, self.train
        if train.batch_size % (chips := topology.num_chips):
            raise ValueError(
                f"batch_size must be a multiple of the {chips} chips of {topology}, got "
                f"{train.batch_size}"
            )
        mesh = mesh_of(model, train, devices_of(topology))
        # Shapes from here on: no parameter is made, and no device is needed.
        packed = bool(train.text_places)
        batch, rates = abstract_inputs(model, train, mesh, self.num_images, packed=packed)
        args = abstract_state(model, train, mesh), batch, vlm.Slots(self.tokens, self.tokens), rates
        with traced_for(mesh):
            lowered = StepPrograms(model, train, mesh, (self.num_images,)).lower(args)
        places = train.text_places or train.text_len
        chunks = -(-places // min(model.loss_chunk, places))
        options = compiler_options(mesh.devices.flat[0].platform, deterministic=self.deterministic)
        return LoweredProgram(lowered, topology, chunks, options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutProgram:
    """The loss on held-out records, while a stage trains.

    Attributes:
      model: config of the model that the stage trains.
      train: the stage's recipe, with the batch of the held-out records.
      tokens: slots for soft tokens, per image.
    """

    model: ModelConfig
    train: ProgramConfig
    tokens: int

    def lower(self, topology: Topology) -> LoweredProgram:
        """Returns it lowered for the chips that train the stage."""
        from model.watch.held_out import held_out_program

        mesh = mesh_of(self.model, self.train, devices_of(topology))
        state = abstract_state(self.model, self.train, mesh)
        batch, _ = abstract_inputs(self.model, self.train, mesh, 1)
        program = held_out_program(self.model, self.train.lora, mesh)
        args = {**state.trained, **state.frozen}, batch, vlm.Slots(self.tokens, self.tokens)
        with traced_for(mesh):
            lowered = program.lower(*args)
        chunks = -(-self.train.text_len // min(self.model.loss_chunk, self.train.text_len))
        return LoweredProgram(lowered, topology, chunks, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerProgram:
    """The answers to a batch, by one chip: connector, prefill and all new tokens.

    Attributes:
      model: config of the model.
      budget: soft tokens per image.
      rows: rows that the chip answers at a time.
      num_images: images per row, already encoded by the tower.
      text_len: length of the prompts [tokens].
      new_tokens: longest answer.
      decoding: how tokens are chosen.
    """

    model: ModelConfig
    budget: int
    rows: int
    num_images: int = 1
    text_len: int
    new_tokens: int
    decoding: Decoding = Decoding()

    def lower(self, topology: Topology) -> LoweredProgram:
        """Returns it lowered for one of the chips."""
        mesh = mesh_of_one_chip(topology)
        # Shapes as an evaluation passes them: images that the tower has encoded, texts with a mask
        # of real tokens, and a mask of the rows that do not only fill up the batch.
        sharding, vision = NamedSharding(mesh, P()), self.model.vision
        features = jax.ShapeDtypeStruct(
            (self.rows, self.num_images, vision.num_patches, vision.width),
            self.model.dtype,
            sharding=sharding,
        )
        text, real = (
            jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            for shape, dtype in (
                ((self.rows, self.text_len), np.int32),
                ((self.rows,), np.bool_),
            )
        )
        has_lead = self.model.template.lead is not None
        ar = text if has_lead else None
        prompt = vlm.Prompt(vlm.EncodedImages(features), text, text, ar, real=real)  # type: ignore[arg-type]
        bucket = budgets.exact_bucket(self.model, self.budget).size
        static = ("structure", "max_new_tokens", "stop", "decoding")
        with traced_for(mesh):
            lowered = jax.jit(decode_tokens, static_argnames=static).lower(
                vlm.structure(self.model),
                _decoding_params(self.model, sharding),
                prompt,
                vlm.Slots(bucket, self.budget),
                draw_key(self.decoding, 0),
                max_new_tokens=self.new_tokens,
                stop=EOS,
                decoding=self.decoding,
            )
        return LoweredProgram(lowered, topology.one_chip, self.new_tokens, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerProgram:
    """The vision tower alone, on one chip: an evaluation's, and that of spectra.

    Attributes:
      model: config of the model.
      rows: rows of images.
      num_images: images per row.
    """

    model: ModelConfig
    rows: int
    num_images: int = 1

    def lower(self, topology: Topology) -> LoweredProgram:
        """Returns it lowered for one of the chips."""
        mesh, side = mesh_of_one_chip(topology), self.model.vision.image_px
        sharding = NamedSharding(mesh, P())
        shape = (self.rows, self.num_images, side, side, 3)
        images = jax.ShapeDtypeStruct(shape, np.uint8, sharding=sharding)
        params = _decoding_params(self.model, sharding)
        with traced_for(mesh):
            lowered = vlm.encode_images.lower(vlm.structure(self.model), params, images)
        return LoweredProgram(lowered, topology.one_chip, 1, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionProgram:
    """A connector and its queries' attention to the features, on one chip, for spectra.

    Attributes:
      model: config of the model.
      budget: soft tokens per image.
      rows: images at a time.
    """

    model: ModelConfig
    budget: int
    rows: int

    def lower(self, topology: Topology) -> LoweredProgram:
        """Returns it lowered for one of the chips."""
        from model.analysis.attention import record_attention

        mesh, vision = mesh_of_one_chip(topology), self.model.vision
        sharding = NamedSharding(mesh, P())
        features = jax.ShapeDtypeStruct(
            (self.rows, vision.num_patches, vision.width), self.model.dtype, sharding=sharding
        )
        params = vlm.abstract_params(self.model).get("connector", {})
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), params
        )
        with traced_for(mesh):
            lowered = record_attention.lower(self.model, placed, features, self.budget)
        return LoweredProgram(lowered, topology.one_chip, 1, {})


DeviceProgram = TrainProgram | HeldOutProgram | AnswerProgram | TowerProgram | AttentionProgram


def devices_of(topology: Topology) -> Sequence[typing.Any]:
    """Returns the devices of chips that this machine need not have.

    Raises:
      RuntimeError: if their compiler is not installed, or does not know the topology.
    """
    if topology.chip.is_gpu:
        description = topologies.get_topology_desc(
            platform="cuda",
            target_config=target_config(GPU_DEVICES[topology.kind]),
            topology=f"1x1x{topology.num_chips}",  # Slices, hosts of each, GPUs of each.
        )
        return description.devices
    # Another process of this machine may hold libtpu's lock; nothing here touches a device.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    options = {"chip_config_name": "megacore"} if topology.chip.megacore else {}
    return topologies.get_topology_desc(str(topology), "tpu", **options).devices


def mesh_of_one_chip(topology: Topology) -> Mesh:
    """Returns the mesh of the first of some chips."""
    return Mesh(np.array(devices_of(topology)[:1]), ("rows",))


@contextlib.contextmanager
def traced_for(mesh: Mesh) -> Iterator[None]:
    """Programs that are lowered within are those of a mesh's chips, not of this process's devices.

    What a program does only on some hardware (`model.lowering.platform`) follows the mesh.
    """
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def _decoding_params(model: ModelConfig, sharding: NamedSharding) -> typing.Any:
    """Returns the shapes of what `model.decode.rows.decoding_params` returns."""
    shapes = {}
    for path, leaf in flatten_params(vlm.abstract_params(model)):
        dtype = param_dtype(path, leaf, model.dtype)
        shapes[path] = jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)
    return unflatten_params(shapes)
