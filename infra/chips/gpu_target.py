"""The devices that XLA's GPU compiler compiles for on a machine that has none of them."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuDevice:
    """What the compiler must know of a GPU; the rest is alike for all that are listed here.

    Attributes:
      description: its name, as JAX reports it.
      compute_capability: version of its instructions (major, minor).
      cores: streaming multiprocessors.
      fpus_per_core: float32 units of each.
      shared_memory_per_core: shared memory of each [bytes].
      shared_memory_per_block: most of it that a block may ask for [bytes].
      memory_bytes: memory that the driver reports.
      memory_bandwidth: peak of reading and writing it [bytes/s].
      l2_bytes: size of its L2 cache.
      clock_ghz: its highest clock.
      threads_per_core: most threads that a streaming multiprocessor has at a time.
    """

    description: str
    compute_capability: tuple[int, int]
    cores: int
    fpus_per_core: int
    shared_memory_per_core: int
    shared_memory_per_block: int
    memory_bytes: int
    memory_bandwidth: int
    l2_bytes: int
    clock_ghz: float
    threads_per_core: int = 2048


_HOPPER = GpuDevice(
    description="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    cores=132,
    fpus_per_core=128,
    shared_memory_per_core=233_472,
    shared_memory_per_block=232_448,
    memory_bytes=84_942_979_072,
    memory_bandwidth=3_352_320_000_000,
    l2_bytes=52_428_800,
    clock_ghz=1.98,
)

_ADA = GpuDevice(
    description="NVIDIA L4",
    compute_capability=(8, 9),
    cores=58,
    fpus_per_core=128,
    shared_memory_per_core=102_400,
    shared_memory_per_block=101_376,
    memory_bytes=round(22.03 * 2**30),
    memory_bandwidth=300_000_000_000,
    l2_bytes=50_331_648,
    clock_ghz=2.04,
    threads_per_core=1536,
)

# Source: openxla/xla, xla/backends/gpu/target_config/specs/{a100_sxm_80,h100_sxm,h200}.txtpb. It
# has none of the three with 24 GB. For these, limits of a core are those of the CUDA programming
# guide for compute capability 8.6 and 8.9; cores, clock, cache and bandwidth are NVIDIA's (data
# sheets of L4 and A10, white papers of Ada and GA102). Memory is the total that CUDA states in
# reports of users: less than 24 GiB, since on L4 and A10 ECC takes a part.
GPU_DEVICES = {
    "a100": GpuDevice(
        description="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        cores=108,
        fpus_per_core=64,
        shared_memory_per_core=167_936,
        shared_memory_per_block=166_912,
        memory_bytes=85_100_068_864,
        memory_bandwidth=2_039_040_000_000,
        l2_bytes=41_943_040,
        clock_ghz=1.41,
    ),
    "h100": _HOPPER,
    "h200": dataclasses.replace(
        _HOPPER,
        description="NVIDIA H200 141GB HBM3e",
        memory_bytes=151_397_597_184,
        memory_bandwidth=4_800_000_000_000,
    ),
    "l4": _ADA,
    "a10": dataclasses.replace(
        _ADA,
        description="NVIDIA A10",
        compute_capability=(8, 6),
        cores=72,
        memory_bandwidth=600_000_000_000,
        l2_bytes=6_291_456,
        clock_ghz=1.695,
    ),
    "rtx4090": dataclasses.replace(
        _ADA,
        description="NVIDIA GeForce RTX 4090",
        cores=128,
        memory_bytes=round(23.64 * 2**30),
        memory_bandwidth=1_008_000_000_000,
        l2_bytes=75_497_472,
        clock_ghz=2.52,
    ),
}
"""Kind of chip -> its device."""


def target_config(device: GpuDevice) -> str:
    """Returns XLA's `GpuTargetConfigProto` of a device, in its text form."""
    major, minor = device.compute_capability
    # Without a runtime version the compiler refuses the target. The limits on blocks, on their
    # threads and on registers are those of every device since compute capability 8.0.
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {device.shared_memory_per_core}
  threads_per_core_limit: {device.threads_per_core}
  core_count: {device.cores}
  fpus_per_core: {device.fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {device.memory_bandwidth}
  l2_cache_size: {device.l2_bytes}
  clock_rate_ghz: {device.clock_ghz}
  device_memory_size: {device.memory_bytes}
  shared_memory_per_block_optin: {device.shared_memory_per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{device.description}"
"""
