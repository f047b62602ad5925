// A pool whose layers differ: each layer's kernels read and write its own memory only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "cache/kv_pool.h"
#include "kernels/attention/op.h"
#include "kernels/cpu/backend.h"
#include "kernels/kv_append/op.h"
#include "kernels/kv_layer.h"

namespace espalier {
namespace {

constexpr int32_t kPageSize = 4, kTokens = 11, kGroup = 2;

// Two head counts, two head sizes, two element types, and a window layer with a pool of its own.
KvPoolConfig differing_layers() {
  return {.num_layers = 3,
          .num_pages = 8,
          .page_size = kPageSize,
          .window_layers = {false, false, true},
          .num_window_pages = 3,
          .layer_shapes = {{.num_kv_heads = 2, .head_dim = 16, .type = KvType::kFloat32},
                           {.num_kv_heads = 4, .head_dim = 32, .type = KvType::kBFloat16},
                           {.num_kv_heads = 1, .head_dim = 32, .type = KvType::kBFloat16}}};
}

std::vector<float> draw(Rng& rng, int32_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = static_cast<float>(rng.uniform() - 0.5);
  return out;
}

class DifferingLayers : public testing::Test {
 protected:
  struct Inputs {
    std::vector<float> q, k, v;
  };
  DifferingLayers() : backend_(*kernels::CpuBackend::create(pool_)) {
    entry_.num_query_tokens = kTokens;
    entry_.num_pages = 3;
  }

  std::vector<PageId> table_of(const KvView::Layer& layer) const {
    return layer.kind == KvLayerKind::kWindowPages ? std::vector<PageId>{2, 0, 1}
                                                   : std::vector<PageId>{7, 2, 5};
  }
  Inputs draw_inputs(const KvView::Layer& layer) {
    const int32_t width = kTokens * layer.num_kv_heads * layer.head_dim;
    return {draw(rng_, kGroup * width), draw(rng_, width), draw(rng_, width)};
  }
  void append(const KvView& kv, int32_t index, const Inputs& in) {
    const KvView::Layer& layer = kv.layer(index);
    const int64_t width = int64_t{layer.num_kv_heads} * layer.head_dim;
    const std::vector<PageId> table = table_of(layer);
    kernels::kv_append(*backend_, {.k = in.k.data(),
                                   .k_stride = width,
                                   .v = in.v.data(),
                                   .v_stride = width,
                                   .entries = {&entry_, 1},
                                   .page_tables = table,
                                   .kv = &kv,
                                   .layer = index});
  }
  std::vector<float> attend(const KvView& kv, int32_t index, const Inputs& in, bool reference) {
    const KvView::Layer& layer = kv.layer(index);
    const std::vector<PageId> table = table_of(layer);
    std::vector<float> out(in.q.size());
    const int32_t heads = kGroup * layer.num_kv_heads;
    const kernels::AttentionArgs args{.q = in.q.data(),
                                      .q_stride = int64_t{heads} * layer.head_dim,
                                      .out = out.data(),
                                      .out_stride = int64_t{heads} * layer.head_dim,
                                      .heads = heads,
                                      .entries = {&entry_, 1},
                                      .page_tables = table,
                                      .kv = &kv,
                                      .layer = index,
                                      .scale = 0.3f};
    reference ? kernels::reference::attention(args) : kernels::attention(*backend_, args);
    return out;
  }

  Rng rng_{7};
  WorkPool pool_{2};
  std::unique_ptr<kernels::CpuBackend> backend_;
  BatchEntry entry_;
};

TEST_F(DifferingLayers, AttentionReadsWhatKvAppendWroteForTheSameLayer) {
  const Result<KvPool> pool = KvPool::create(differing_layers());
  ASSERT_TRUE(pool) << pool.error().message();
  const KvView& kv = pool->view();
  ASSERT_EQ(kv.layers.size(), 3u);
  EXPECT_EQ(kv.layer(2).num_pages, 3);
  EXPECT_TRUE(kernels::check_kv_view(kv, kernels::KvKernels::kCpu).ok());
  std::vector<Inputs> inputs;
  for (int32_t i = 0; i < 3; ++i) inputs.push_back(draw_inputs(kv.layer(i)));
  for (int32_t i = 0; i < 3; ++i) append(kv, i, inputs[static_cast<size_t>(i)]);

  for (int32_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    // The same layer in a pool without the others.
    const KvPoolConfig config = differing_layers();
    KvPoolConfig alone = {.num_layers = 1, .num_pages = 8, .page_size = kPageSize};
    alone.layer_shapes = {config.shape_of(i)};
    alone.window_layers = {config.is_window_layer(i)};
    alone.num_window_pages = 3;
    const Result<KvPool> single = KvPool::create(alone);
    ASSERT_TRUE(single) << single.error().message();
    const Inputs& in = inputs[static_cast<size_t>(i)];
    append(single->view(), 0, in);
    const std::vector<float> out = attend(kv, i, in, false);
    EXPECT_EQ(out, attend(single->view(), 0, in, false));
    EXPECT_THAT(out, testing::Pointwise(testing::FloatNear(2e-5f), attend(kv, i, in, true)));
  }
}

TEST(CheckKvView, RefusesWhatNoKernelTakes) {
  KvPoolConfig config = differing_layers();
  config.layer_shapes[1].type = KvType::kFloat8E4M3;
  const Result<KvPool> pool = KvPool::create(config);
  ASSERT_TRUE(pool);
  EXPECT_TRUE(kernels::check_kv_view(pool->view(), kernels::KvKernels::kCuda).ok());
  const Status status = kernels::check_kv_view(pool->view(), kernels::KvKernels::kCpu);
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(),
              testing::AllOf(testing::HasSubstr("KV layer 1"), testing::HasSubstr("float8_e4m3")));
  KvView::Layer layer;
  EXPECT_TRUE(kernels::check_kv_layer(layer).ok());
  layer.kind = KvLayerKind::kRecurrentState;
  EXPECT_THAT(kernels::check_kv_layer(layer).message(), testing::HasSubstr("recurrent state"));
  layer = {};
  float scale = 1;
  layer.k_scales = &scale;
  EXPECT_THAT(kernels::check_kv_layer(layer).message(), testing::HasSubstr("scales"));
}

TEST(KvLayoutName, DiffersWhereALayerDiffers) {
  KvPoolConfig config = differing_layers();
  const std::string name = kv_layout_name(config);
  config.layer_shapes[1].num_kv_heads = 2;
  EXPECT_NE(kv_layout_name(config), name);
  const KvPoolConfig listed = {.num_layers = 2, .layer_shapes = {{1, 8}, {1, 8}}};
  EXPECT_EQ(kv_layout_name(listed),
            kv_layout_name({.num_layers = 2, .num_kv_heads = 1, .head_dim = 8}));
}

}  // namespace
}  // namespace espalier
