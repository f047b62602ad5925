#include "cache/radix_nodes.h"

#include <algorithm>

#include "base/check.h"
#include "cache/radix_node.h"

namespace espalier {

RadixNode* RadixNodes::create(uint64_t now) {
  RadixNode* node = nullptr;
  if (unused_.empty()) {
    node = new (node_memory_.take(sizeof(RadixNode))) RadixNode();
    nodes_.push_back(node);
    node->number = static_cast<uint32_t>(nodes_.size());
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  node->id = node->number;
  node->use = {.created = now, .last_use = now};
  return node;
}

void RadixNodes::destroy(RadixNode* node) {
  if (node->block.data != nullptr) runs_.free(node->block);
  const uint32_t number = node->number;
  *node = RadixNode();
  node->number = number;
  unused_.push_back(node);
}

PageRecord* RadixNodes::allocate_run(RadixNode* node, std::span<const int32_t> tokens,
                                     size_t num_pages) {
  constexpr size_t kInts = sizeof(PageRecord) / sizeof(int32_t);
  node->block = runs_.allocate(tokens.size() + kInts * num_pages);
  int32_t* const data = node->block.data;
  std::copy(tokens.begin(), tokens.end(), data);
  auto* const records = reinterpret_cast<PageRecord*>(data + tokens.size());
  node->token_data = data;
  node->num_tokens = static_cast<int32_t>(tokens.size());
  node->page_data = records;
  node->num_pages = static_cast<int32_t>(num_pages);
  return records;
}

void RadixNodes::set_run(RadixNode* node, std::span<const int32_t> tokens,
                         std::span<const PageRecord> pages) {
  std::ranges::copy(pages, allocate_run(node, tokens, pages.size()));
}

void RadixNodes::set_computed_run(RadixNode* node, std::span<const int32_t> tokens,
                                  std::span<const int32_t> pages) {
  PageRecord* const records = allocate_run(node, tokens, pages.size());
  for (size_t i = 0; i < pages.size(); ++i) records[i] = PageRecord{.page = pages[i]};
}

// The records lie in the node's block, which runs_ owns.
void RadixNodes::set_pages(RadixNode* node, std::span<const PageRecord> pages) {
  ESP_CHECK(pages.size() == node->pages().size());
  std::ranges::copy(pages, const_cast<PageRecord*>(node->page_data));
}

void RadixNodes::link(RadixNode* parent, RadixNode* node) {
  node->parent = parent;
  node->prev_sibling = nullptr;
  node->next_sibling = parent->first_child;
  if (parent->first_child != nullptr) parent->first_child->prev_sibling = node;
  parent->first_child = node;
  ++num_linked_;
}

void RadixNodes::unlink(RadixNode* node) {
  (node->prev_sibling != nullptr ? node->prev_sibling->next_sibling : node->parent->first_child) =
      node->next_sibling;
  if (node->next_sibling != nullptr) node->next_sibling->prev_sibling = node->prev_sibling;
  --num_linked_;
}

}  // namespace espalier
