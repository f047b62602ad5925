// Storages that are needed together never overlap, whatever the program; a chain of operations
// takes no more memory than its largest neighbours.
#include "models/program/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/test_support.h"
#include "models/golden.h"
#include "models/program/cpu_model.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"

namespace espalier::program {
namespace {

Operand whole(const Program& program, BufferId id) {
  return {id, 0, program.buffers[static_cast<size_t>(id)].columns};
}

// num_buffers buffers of one column, each with a storage of its own.
Program with_buffers(int num_buffers) {
  Program program{.name = "test"};
  for (int i = 0; i < num_buffers; ++i) {
    Buffer buffer;
    buffer.name = "b" + std::to_string(i);
    buffer.columns = 1;
    buffer.storage = i;
    program.buffers.push_back(buffer);
  }
  program.num_storages = num_buffers;
  return program;
}

void add(Program& program, std::vector<BufferId> from, BufferId to) {
  Op op{.kind = OpKind::kResidualAdd, .layer = 0, .outputs = {whole(program, to)}};
  for (const BufferId id : from) op.inputs.push_back(whole(program, id));
  program.ops.push_back(op);
}

// Buffer i + 1 is made of buffer i.
Program chain(int num_buffers) {
  Program program = with_buffers(num_buffers);
  for (int i = 0; i + 1 < num_buffers; ++i) add(program, {i}, i + 1);
  return program;
}

bool uses(const Op& op, BufferId id) {
  const auto is_it = [&](const Operand& operand) { return operand.buffer == id; };
  return std::ranges::any_of(op.inputs, is_it) || std::ranges::any_of(op.outputs, is_it);
}

// Operations [first, last) from the first that uses the buffer to the last, a simple lifetime.
std::pair<size_t, size_t> lifetime(const Program& program, BufferId id) {
  size_t first = program.ops.size(), last = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (!uses(program.ops[i], id)) continue;
    first = std::min(first, i);
    last = i + 1;
  }
  return {first, last};
}

bool overlap(int64_t a, int64_t a_size, int64_t b, int64_t b_size) {
  return a < b + b_size && b < a + a_size;
}

// REQUIRES: each buffer has its own storage, is written once and as a whole.
void expect_apart(const Program& program, const std::vector<int64_t>& bytes,
                  const MemoryPlan& plan) {
  const auto num_buffers = static_cast<BufferId>(program.buffers.size());
  for (BufferId a = 0; a < num_buffers; ++a) {
    const auto i = static_cast<size_t>(a);
    EXPECT_EQ(plan.offsets[i] % kStorageAlignment, 0);
    EXPECT_LE(plan.offsets[i] + bytes[i], plan.total_bytes);
    for (BufferId b = 0; b < a; ++b) {
      const auto j = static_cast<size_t>(b);
      const auto [a_first, a_last] = lifetime(program, a);
      const auto [b_first, b_last] = lifetime(program, b);
      if (a_first >= b_last || b_first >= a_last) continue;
      EXPECT_FALSE(overlap(plan.offsets[i], bytes[i], plan.offsets[j], bytes[j]))
          << a << " and " << b;
    }
  }
}

int64_t aligned(int64_t bytes) {
  return (bytes + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
}

TEST(MemoryPlan, AChainTakesItsLargestNeighbours) {
  const uint64_t seed = kernels::test::fresh_seed();
  SCOPED_TRACE("ESPALIER_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    const int length = 2 + static_cast<int>(rng.below(12));
    const Program program = chain(length);
    std::vector<int64_t> bytes;
    for (int i = 0; i < length; ++i) {
      bytes.push_back(1 + static_cast<int64_t>(rng.below(4000)));
    }
    const MemoryPlan plan = place_storages(program, bytes, {});
    expect_apart(program, bytes, plan);
    int64_t most = 0;
    for (size_t i = 0; i + 1 < bytes.size(); ++i) {
      most = std::max(most, aligned(bytes[i]) + aligned(bytes[i + 1]));
    }
    ASSERT_EQ(plan.total_bytes, most);
  }
}

// What is written in parts, one operation after the other, takes no memory in front of the first.
TEST(MemoryPlan, PartsAreNotNeededBeforeTheFirstOne) {
  Program program = with_buffers(4);
  program.buffers[3].columns = 2;
  add(program, {0}, 1);
  add(program, {1}, 2);
  for (const int32_t part : {0, 1}) {
    add(program, {2}, 3);
    program.ops.back().outputs = {{.buffer = 3, .column = part, .columns = 1}};
  }
  const std::vector<int64_t> bytes = {1024, 1024, 1024, 2048};
  const MemoryPlan plan = place_storages(program, bytes, {});
  expect_apart(program, bytes, plan);
  EXPECT_EQ(plan.total_bytes, 3072);
}

// Each buffer is made of some of those before it.
TEST(MemoryPlan, BuffersThatAreNeededTogetherNeverOverlap) {
  const uint64_t seed = kernels::test::fresh_seed();
  SCOPED_TRACE("ESPALIER_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    const int count = 2 + static_cast<int>(rng.below(16));
    Program program = with_buffers(count);
    std::vector<int64_t> bytes = {256};
    for (BufferId to = 1; to < count; ++to) {
      std::vector<BufferId> from;
      for (int inputs = 1 + static_cast<int>(rng.below(3)); inputs > 0; --inputs) {
        from.push_back(static_cast<BufferId>(rng.below(static_cast<uint64_t>(to))));
      }
      add(program, from, to);
      bytes.push_back(1 + static_cast<int64_t>(rng.below(4000)));
    }
    const MemoryPlan plan = place_storages(program, bytes, {});
    expect_apart(program, bytes, plan);
    int64_t sum = 0;
    for (const int64_t size : bytes) sum += aligned(size);
    EXPECT_LE(plan.total_bytes, sum);
  }
}

TEST(MemoryPlan, AStorageOfNoBytesLiesElsewhere) {
  const std::vector<int64_t> bytes = {512, 0, 256};
  const MemoryPlan plan = place_storages(chain(3), bytes, {});
  EXPECT_EQ(plan.total_bytes, 512);
}

// What an alternative stands for needs all its buffers at once.
TEST(MemoryPlan, AnAlternativeKeepsItsBuffersApart) {
  const Program program = chain(5);
  const std::vector<int64_t> bytes(5, 256);
  EXPECT_EQ(place_storages(program, bytes, {}).total_bytes, 512);
  const std::vector<Alternative> all = {{.first = 0, .last = 4, .op = program.ops[0]}};
  EXPECT_EQ(place_storages(program, bytes, all).total_bytes, 5 * 256);
}

// Every golden's program on both back ends, with sizes that differ: no more than the sum, and far
// less where layers follow each other.
TEST(MemoryPlan, OfEveryGoldenSharesMemory) {
  for (const std::string& name : golden::names()) {
    const Program lowered = lower(golden::read(name).spec);
    for (const Program& program : {cpu_passes(lowered), gpu_passes(lowered)}) {
      std::vector<int64_t> bytes(static_cast<size_t>(program.num_storages), 0);
      for (const Buffer& buffer : program.buffers) {
        int64_t& size = bytes[static_cast<size_t>(buffer.storage)];
        size = std::max<int64_t>(size, 64 * buffer.rows.per_row * buffer.columns * 4);
      }
      int64_t sum = 0;
      for (const int64_t size : bytes) sum += aligned(size);
      const MemoryPlan plan = place_storages(program, bytes, find_alternatives(program));
      EXPECT_LT(plan.total_bytes, sum) << name;
    }
  }
}

// A draft head reads them when the program has run.
TEST(MemoryPlan, KeptStatesAreNotWrittenOver) {
  DecoderSpec spec = golden::read("llama_tied_llama3").spec;
  const auto end_of_others = [&] {
    const Program program = gpu_passes(lower(spec));
    std::vector<int64_t> bytes(static_cast<size_t>(program.num_storages), 4096);
    const MemoryPlan plan = place_storages(program, bytes, find_alternatives(program));
    const auto kept = std::ranges::find(program.buffers, kKeptStates, &Buffer::name);
    if (kept == program.buffers.end()) return plan.total_bytes;
    const auto id = static_cast<BufferId>(kept - program.buffers.begin());
    const int64_t at = plan.offsets[static_cast<size_t>(kept->storage)];
    const size_t first = lifetime(program, id).first;
    for (size_t i = first; i < program.ops.size(); ++i) {
      for (const Operand& out : program.ops[i].outputs) {
        const Buffer& buffer = program.buffer(out);
        if (out.buffer == id || buffer.type != ElementType::kActivation) continue;
        EXPECT_FALSE(overlap(plan.offsets[static_cast<size_t>(buffer.storage)], 4096, at, 4096))
            << buffer.name << " in operation " << i;
      }
    }
    return plan.total_bytes;
  };
  const int64_t without = end_of_others();
  spec.kept_states = {0, 1, 2};
  EXPECT_GT(end_of_others(), without);
}

}  // namespace
}  // namespace espalier::program
