// Nodes keep their runs and links; deleted ones are reused.
#include "cache/radix_nodes.h"

#include <gtest/gtest.h>

#include "cache/radix_node.h"

namespace espalier {
namespace {

TEST(RadixNodes, ARunKeepsItsTokensAndRecords) {
  RadixNodes nodes;
  RadixNode* node = nodes.create(7);
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<PageRecord> pages = {
      {.page = 4},
      {.page = 5, .home = PageHome::kHost},
      {.page = 6, .home = PageHome::kInTransit, .state = PageState::kPending}};
  nodes.set_run(node, tokens, pages);
  EXPECT_TRUE(std::ranges::equal(node->tokens(), tokens));
  EXPECT_TRUE(std::ranges::equal(node->pages(), pages));
  EXPECT_TRUE(node->pages()[0].resident());
  EXPECT_FALSE(node->pages()[1].resident());
  EXPECT_FALSE(node->pages()[2].resident());
  EXPECT_EQ(node->use.created, 7u);
}

TEST(RadixNodes, ComputedPagesAreOnTheDevice) {
  RadixNodes nodes;
  RadixNode* node = nodes.create(1);
  nodes.set_computed_run(node, std::vector<int32_t>{1, 2}, std::vector<int32_t>{8, 9});
  ASSERT_EQ(node->pages().size(), 2u);
  EXPECT_EQ(node->pages()[1], (PageRecord{.page = 9}));
  EXPECT_TRUE(node->pages()[1].resident());
}

TEST(RadixNodes, LinksAreConsistent) {
  RadixNodes nodes;
  RadixNode *root = nodes.create(0), *a = nodes.create(0), *b = nodes.create(0),
            *c = nodes.create(0);
  for (RadixNode* child : {a, b, c}) nodes.link(root, child);
  EXPECT_EQ(root->first_child, c);  // the newest
  EXPECT_EQ(nodes.num_linked(), 3u);
  nodes.unlink(b);
  EXPECT_EQ(c->next_sibling, a);
  EXPECT_EQ(a->prev_sibling, c);
  nodes.unlink(c);
  EXPECT_EQ(root->first_child, a);
  EXPECT_EQ(a->prev_sibling, nullptr);
  EXPECT_EQ(nodes.num_linked(), 1u);
}

TEST(RadixNodes, ADeletedNodeIsReused) {
  RadixNodes nodes;
  RadixNode* node = nodes.create(1);
  nodes.set_run(node, std::vector<int32_t>{1}, {});
  const uint32_t number = node->number;
  nodes.destroy(node);
  EXPECT_EQ(node->id, 0u);
  EXPECT_TRUE(node->tokens().empty());
  EXPECT_EQ(nodes.num_unused(), 1u);
  EXPECT_EQ(nodes.create(2), node);
  EXPECT_EQ(node->id, number);
  EXPECT_EQ(nodes.all().size(), 1u);
  EXPECT_EQ(nodes.num_unused(), 0u);
}

}  // namespace
}  // namespace espalier
