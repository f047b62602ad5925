// A decode step allocates nothing on the heap: counted by replacing operator new in this binary.
#include <gtest/gtest.h>

#include "base/heap_count.h"
#include "models/golden.h"

namespace espalier {
namespace {

TEST(Allocation, DecodeStepsNeedNone) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    WorkPool pool(2);
    auto model =
        load_model({.path = "tests/golden/models/qwen3_head_dim", .dtype = dtype, .pool = &pool});
    ASSERT_TRUE(model);
    ASSERT_TRUE((*model)->reserve(8, 4).ok());
    Rng rng(1);
    golden::KvMemory kv((*model)->info(), KvType::kBFloat16, 1, 64, rng);
    ForwardBatch batch;
    for (int32_t entry = 0; entry < 3; ++entry) {
      batch.entries.push_back({.slot = entry,
                               .num_query_tokens = 1,
                               .query_begin = entry,
                               .page_begin = entry,
                               .num_pages = 1,
                               .sample = true});
      batch.token_ids.push_back(5 + entry);
      batch.positions.push_back(0);
      batch.page_tables.push_back(kv.take_page());
    }
    const InputLogitsSink sink = [](int32_t, int32_t, std::span<const float>) {};
    (*model)->forward(batch, batch.token_ids, kv.view(), sink);
    const int64_t before = num_heap_allocations();
    const ForwardOutput output = (*model)->forward(batch, batch.token_ids, kv.view(), sink);
    const int64_t allocations = num_heap_allocations() - before;
    EXPECT_EQ(output.sample_logits.size(), 600u);
    EXPECT_EQ(allocations, 0) << dtype;
  }
}

}  // namespace
}  // namespace espalier
