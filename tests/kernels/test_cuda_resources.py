"""Every CUDA kernel compiled by NVRTC for every architecture: registers, spills, shared memory, width of accesses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from kernels.backends.base import BlocktileKernel, StreamCandidate, StreamKernel, UntiledKernel
from kernels.backends.cuda_source import (
    GEOMETRIES,
    OPTIONS,
    Plan,
    every_plan,
    plan_blocktile,
    plan_stream,
    plan_untiled,
)
from kernels.parameters import LEAD, WIDE, Geometry
from tests.kernels.cuda_shim import nvrtc

ARCHITECTURES = (70, 80, 86, 89, 90, 100, 120)
CUPY_OPTIONS = (*OPTIONS, "-ftz=true", "--device-as-default-execution-space")
"""What CuPy compiles a RawModule with."""
STATIC_SHARED_BYTES = 48 << 10


@dataclass(frozen=True)
class Compiled:
    """What came of one plan on one architecture."""

    kernels: Mapping[str, nvrtc.Resources]
    cubin: bytes

    @property
    def registers(self) -> int:
        return max(each.registers for each in self.kernels.values())


def compile_plan(plan: Plan, arch: int, text: str | None = None) -> Compiled:
    cubin, found = nvrtc.compile_cubin(text or plan.text, CUPY_OPTIONS, arch)
    return Compiled(found, cubin)


def faults(plan: Plan, compiled: Compiled) -> list[str]:
    """Everything about the kernels of a plan's source that would cost speed or keep them from launching."""
    bound = max_registers(plan)
    shared = sum(value for name, value in plan.macros if name in ("BM", "BN")) * 4 * dict(plan.macros).get("BK", 0)
    found = [] if plan.entry in compiled.kernels else [f"{plan.entry} is missing"]
    for name, resources in compiled.kernels.items():
        if resources.spill_bytes or resources.stack_bytes:
            found.append(f"{name} spills {resources.spill_bytes} bytes, stack {resources.stack_bytes} bytes")
        if resources.registers > bound:
            found.append(f"{name} takes {resources.registers} registers, more than {bound}")
        if resources.shared_bytes != shared or shared > STATIC_SHARED_BYTES:
            found.append(f"{name} takes {resources.shared_bytes} bytes of shared memory, not {shared}")
    return found


def max_registers(plan: Plan) -> int:
    """The registers under which the occupancy that docs/gpu.md counts on holds.

    STREAM, the untiled contraction and FMA: 40, for six blocks of 256 threads (the guarded variants: 64). Register
    tiles: sums and operands of a 4 x 4 tile take 24 to 32, addresses and staging as many; a wider one in proportion.
    """
    if plan.source != "blocktile":
        return 64 if plan.guarded else 40
    macros = dict(plan.macros)
    return {16: 64, 32: 96, 64: 128}[macros["TM"] * macros["TN"]]


@pytest.fixture(scope="module")
def matrix() -> Mapping[tuple[str, str, int], tuple[Plan, Compiled]]:
    """Every plan on every architecture."""
    cases = [(plan, arch) for plan in every_plan() for arch in ARCHITECTURES]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda case: compile_plan(*case), cases))
    return {
        (plan.source, f"{plan.label}{',guarded' if plan.guarded else ''}", arch): (plan, compiled)
        for (plan, arch), compiled in zip(cases, done, strict=True)
    }


def test_no_kernel_spills_or_outgrows_its_bounds_on_any_architecture(
    matrix: Mapping[tuple[str, str, int], tuple[Plan, Compiled]], record_property: Callable[[str, object], None]
) -> None:
    lines = [f"NVRTC {'.'.join(map(str, nvrtc.version()))} for sm_" + " sm_".join(map(str, ARCHITECTURES))]
    for source, label in dict.fromkeys(key[:2] for key in matrix):
        registers = [matrix[source, label, arch][1].registers for arch in ARCHITECTURES]
        lines.append(f"  {source:12} {label:40} registers {' '.join(f'{each:3}' for each in registers)}")
    record_property("summary", "\n".join(lines))  # tests/conftest.py prints it last

    assert len(matrix) == (8 + 3 + 4 + len(GEOMETRIES) + 1) * len(ARCHITECTURES)
    assert {key: found for key, (plan, each) in matrix.items() if (found := faults(plan, each))} == {}


def test_four_lane_streams_and_register_tiles_move_128_bits_an_instruction(
    matrix: Mapping[tuple[str, str, int], tuple[Plan, Compiled]],
) -> None:
    """SASS of the widest stream and the default tiles everywhere, of all on sm_90; CUDA 13 does not read sm_70."""
    labels = ("block=256,vec=4,ept=4", f"geometry={LEAD.label}", f"geometry={WIDE.label}")
    chosen = [
        (label, plan, compiled)
        for (source, label, arch), (plan, compiled) in matrix.items()
        if arch != 70 and source in ("stream", "blocktile") and (label in labels or (arch == 90 and source != "stream"))
    ]
    with ThreadPoolExecutor(2) as pool:
        disassembled = list(pool.map(lambda each: nvrtc.disassemble(each[2].cubin), chosen))

    for (label, plan, _), kernels in zip(chosen, disassembled, strict=True):
        macros = dict(plan.macros)
        for entry, instructions in kernels.items():
            found = widths(instructions)
            if plan.source == "stream":
                loads = 4 if entry in ("stream_copy", "stream_scale") else 8
                assert found == {("LDG", 128): loads, ("STG", 128): 4}, (label, entry)
                continue
            tile = macros["TM"] * macros["TN"]
            assert found == {
                ("LDG", 128): 2,  # one vector of each operand a thread and step
                ("STS", 128): 2,
                ("LDS", 128): macros["BK"] * (macros["TM"] + macros["TN"]) // 4,
                ("STG", 128): tile // 4,
            }, label
            counted = Counter(instruction.split(".")[0] for instruction in instructions)
            assert (counted["FFMA"], counted["BAR"]) == (macros["BK"] * tile, 2), label
    assert len(chosen) == 3 * 6 + 2


def test_four_lane_streams_and_register_tiles_are_128_bits_wide_in_ptx_for_sm_70() -> None:
    """The disassembler of CUDA 13 no longer reads sm_70."""
    stream = plan_stream(StreamKernel("triad", 1 << 20, StreamCandidate(256, 4, 1)))
    tile = plan_blocktile(BlocktileKernel(LEAD, 32, 32, 8))
    for plan, loads, stores in ((stream, 1 + 1 + 2 + 2, 4), (tile, 2, 4)):
        ptx = nvrtc.compile_ptx(plan.text, CUPY_OPTIONS, 70)
        accesses = Counter(re.findall(r"\b(ld|st)\.global(?:\.nc)?(?:\.(v\d))?\.\w+", ptx))
        assert accesses == {("ld", "v4"): loads, ("st", "v4"): stores}


def widths(instructions: list[str]) -> Counter[tuple[str, int]]:
    """Loads and stores of global and shared memory, by their width in bits."""
    found: Counter[tuple[str, int]] = Counter()
    for instruction in instructions:
        kind, *modifiers = instruction.split(".")
        if kind in ("LDG", "STG", "LDS", "STS", "LDL", "STL"):
            found[kind, next((int(word) for word in modifiers if word in ("64", "128")), 32)] += 1
    return found


def test_the_untiled_contraction_reads_x_past_the_first_level_cache(
    matrix: Mapping[tuple[str, str, int], tuple[Plan, Compiled]],
) -> None:
    for arch in (80, 90):
        _, compiled = matrix["contraction", "block=256x1,phase=aligned", arch]
        (instructions,) = nvrtc.disassemble(compiled.cubin).values()
        loads = Counter(each for each in instructions if each.startswith("LDG"))
        # Eight unrolled steps and the loop for a remainder: x at device scope, dy through the read-only cache.
        assert loads == {"LDG.E.STRONG.GPU": 9, "LDG.E.CONSTANT": 9}


def resident_blocks(threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks an H200's multiprocessor holds: docs/gpu.md, "Occupancy of an H200 by hand"."""
    warps = threads // 32
    warp_registers = -(-registers * 32 // 256) * 256
    by_registers = 4 * (16384 // warp_registers) // warps
    by_shared = (228 << 10) // (shared_bytes + 1024)
    return min(by_registers, by_shared, 64 // warps, 32)


def test_the_occupancy_of_an_h200_is_as_worked_out_by_hand(
    matrix: Mapping[tuple[str, str, int], tuple[Plan, Compiled]],
) -> None:
    expected = {
        ("blocktile", "geometry=32x32x8/4x4"): 18,
        ("blocktile", "geometry=64x64x8/4x4"): 4,
        ("blocktile", "geometry=128x64x8/8x4"): 3,
        ("blocktile", "geometry=128x128x8/8x8"): 2,
        ("contraction", "block=256x1,phase=aligned"): 8,
        ("contraction", "block=256x1,phase=spread"): 8,
        ("stream", "block=256,vec=4,ept=4"): 8,
        ("fma", "block=256,chains=16"): 8,
    }

    for (source, label), blocks in expected.items():
        plan, compiled = matrix[source, label, 90]
        shared = max(each.shared_bytes for each in compiled.kernels.values())
        assert resident_blocks(plan.threads, compiled.registers, shared) == blocks, label


def test_a_kernel_that_spills_is_found() -> None:
    plan = plan_blocktile(BlocktileKernel(Geometry(128, 128, 8, 8, 8), 128, 128, 8))
    text = plan.text.replace("__launch_bounds__(THREADS)", "__launch_bounds__(THREADS, 4)")

    found = faults(plan, compile_plan(plan, 90, text))

    # Four blocks of 256 threads leave 64 registers a thread, and the 64 sums alone take as many.
    assert any("spills" in fault for fault in found)


def test_scalar_accesses_where_vectors_are_promised_are_found() -> None:
    plan = plan_stream(StreamKernel("copy", 1 << 20, StreamCandidate(256, 4, 4)))
    text = plan.text.replace("aligned(4 * VECTOR)", "aligned(4)")
    instructions = nvrtc.disassemble(compile_plan(plan, 90, text).cubin)["stream_copy"]

    assert widths(instructions) == {("LDG", 32): 16, ("STG", 32): 16}


def test_too_many_registers_and_a_wrong_tile_are_found() -> None:
    plan = plan_untiled(UntiledKernel(8, 256, 8))
    heavy = Compiled({"contraction": nvrtc.Resources(41, 0, 0, 0)}, b"")
    tile = plan_blocktile(BlocktileKernel(WIDE, 64, 64, 8))
    short = Compiled({"blocktile": nvrtc.Resources(40, 0, 0, 2048)}, b"")

    assert faults(plan, Compiled({}, b"")) == ["contraction is missing"]
    assert faults(plan, heavy) == ["contraction takes 41 registers, more than 40"]
    assert faults(tile, short) == ["blocktile takes 2048 bytes of shared memory, not 4096"]


def test_a_compiler_error_is_told_with_the_log() -> None:
    with pytest.raises(nvrtc.NvrtcError, match="expected"):
        nvrtc.compile_cubin('extern "C" __global__ void broken( {}', CUPY_OPTIONS, 90)


def test_the_log_of_ptxas_is_read_whole() -> None:
    log = (
        "ptxas info    : Compiling entry function 'tile' for 'sm_90'\n"
        "ptxas info    : Function properties for tile\n"
        "ptxas         .     24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 62 registers, used 1 barriers, 24 bytes cumulative stack size, 2048 bytes smem\n"
    )

    assert nvrtc.parse_log(log) == {"tile": nvrtc.Resources(62, 24, 24, 2048)}
