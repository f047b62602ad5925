#include "cache/page_copier.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "cache/kv_pool.h"

namespace espalier {
namespace {

KvPool pool_of(const KvPoolConfig& config) { return KvPool::create(config).value(); }

// Random pages leave one pool and enter another: each layer's rows arrive, and nothing else
// changes.
void check_copies(const KvPoolConfig& config) {
  const KvPool from = pool_of(config), to = pool_of(config);
  Rng rng(3);
  for (const KvView::Layer& layer : from.view().layers)
    for (void* plane : {layer.k, layer.v})
      for (int64_t i = 0; i < layer.plane_bytes(); ++i)
        static_cast<std::byte*>(plane)[i] = static_cast<std::byte>(rng());
  const auto reader = make_host_page_copier(from.view()).value();
  const auto writer = make_host_page_copier(to.view()).value();
  ASSERT_EQ(reader->page_bytes(), config.bytes_per_page());
  std::vector<std::byte> bytes(static_cast<size_t>(reader->page_bytes()));
  EXPECT_TRUE(reader->read_page(2, bytes).ok());
  EXPECT_TRUE(writer->write_page(5, bytes).ok());
  std::vector<std::byte> again(bytes.size());
  EXPECT_TRUE(writer->read_page(5, again).ok());
  EXPECT_EQ(again, bytes);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const KvView::Layer& a = from.view().layer(i);
    const KvView::Layer& b = to.view().layer(i);
    for (const auto& [source, target] : {std::pair(a.k, b.k), std::pair(a.v, b.v)}) {
      const auto size = static_cast<size_t>(a.page_bytes());
      EXPECT_EQ(std::memcmp(static_cast<std::byte*>(source) + 2 * size,
                            static_cast<std::byte*>(target) + 5 * size, size),
                0)
          << "layer " << i;
      for (size_t at = 0; at < static_cast<size_t>(b.plane_bytes()); ++at) {
        if (at / size == 5) continue;
        ASSERT_EQ(static_cast<std::byte*>(target)[at], std::byte{0});
      }
    }
  }
  // Layers lie one behind the other, each K, then V.
  const std::byte* at = bytes.data();
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const KvView::Layer& layer = from.view().layer(i);
    const auto size = static_cast<size_t>(layer.page_bytes());
    for (int32_t plane = 0; plane < config.num_planes; ++plane, at += size) {
      const auto* source = static_cast<std::byte*>(plane == 0 ? layer.k : layer.v) + 2 * size;
      EXPECT_EQ(std::memcmp(at, source, size), 0) << "layer " << i << ", plane " << plane;
    }
  }
}

TEST(PageCopier, CopiesKeysAndValuesOfAllLayers) {
  check_copies({.num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .num_pages = 8, .page_size = 3});
}

TEST(PageCopier, CopiesLayersOfDifferentShapesAndLatents) {
  check_copies({.num_layers = 2,
                .num_pages = 8,
                .page_size = 2,
                .layer_shapes = {{.num_kv_heads = 1, .head_dim = 8, .type = KvType::kFloat32},
                                 {.num_kv_heads = 2, .head_dim = 4, .type = KvType::kFloat8E4M3}}});
  check_copies({.num_layers = 2,
                .num_kv_heads = 1,
                .head_dim = 8,
                .num_pages = 8,
                .page_size = 2,
                .num_planes = 1});
}

// Equal planes at equal distances are one run, unless the distance is more than a copy takes.
TEST(PageCopier, PlanesOfOneShapeAreOneRun) {
  const KvPool pool = pool_of({.num_layers = 3,
                               .num_pages = 8,
                               .page_size = 2,
                               .layer_shapes = {{.num_kv_heads = 1, .head_dim = 8},
                                                {.num_kv_heads = 1, .head_dim = 8},
                                                {.num_kv_heads = 2, .head_dim = 8}}});
  const std::vector<PlaneRun> runs = plane_runs(pool.view(), 4 << 20).value();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].num_planes, 4);
  EXPECT_EQ(runs[0].pitch, 2 << 20);
  EXPECT_EQ(runs[0].page_bytes, 32);
  EXPECT_EQ(runs[1].num_planes, 2);
  EXPECT_EQ(runs[1].page_bytes, 64);
  const std::vector<PlaneRun> single = plane_runs(pool.view(), (2 << 20) - 1).value();
  EXPECT_EQ(single.size(), 6u);
}

TEST(PageCopier, RefusesLayersWithPagesOfTheirOwn) {
  const KvPool pool = pool_of({.num_layers = 2,
                               .num_kv_heads = 1,
                               .head_dim = 8,
                               .num_pages = 8,
                               .window_layers = {false, true},
                               .num_window_pages = 4});
  const auto copier = make_host_page_copier(pool.view());
  ASSERT_FALSE(copier.has_value());
  EXPECT_EQ(copier.error().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace espalier
