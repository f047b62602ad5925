// cache_bench [--json FILE]: what the radix tree costs, from a thousand to a million nodes.
//
//   match hit     the whole prompt is cached, in the leaf's and its parent's runs
//   memcmp        comparing as many tokens as that match does, alone: the floor
//   match miss    the first token leads nowhere
//   insert        lock + extend + unlock of a new leaf below a cached prefix
//   evict         one leaf, whole
// Medians of five rounds; each round visits nodes in a random order, so the caches are cold where a
// server's are.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cache/radix_tree.h"

namespace espalier {
namespace {

using Token = RadixTree::Token;
constexpr int kRounds = 5;
constexpr size_t kShared = 512, kOwn = 64;  // tokens of a parent and of a leaf

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Nanoseconds for each of `count` calls.
template <typename Fn>
double time_each(size_t count, const Fn& fn) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) fn(i);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  return elapsed.count() / static_cast<double>(count);
}

struct Row {
  size_t num_nodes;
  int32_t page_size;
  double match_hit_ns, memcmp_ns, match_miss_ns, insert_ns, evict_ns;
};

// Groups of 16 leaves below one shared prefix.
class Workload {
 public:
  Workload(size_t num_leaves, int32_t page_size) : page_size_(static_cast<size_t>(page_size)) {
    Rng rng(num_leaves);
    for (size_t leaf = 0; leaf < num_leaves; ++leaf) {
      if (leaf % 16 == 0) {
        shared_.resize(kShared);
        for (Token& token : shared_) token = static_cast<Token>(rng.below(100000));
      }
      prompts_.insert(prompts_.end(), shared_.begin(), shared_.end());
      for (size_t i = 0; i < kOwn; ++i) prompts_.push_back(static_cast<Token>(rng.below(100000)));
    }
    copies_ = prompts_;
    order_.resize(num_leaves);
    std::iota(order_.begin(), order_.end(), size_t{0});
    for (size_t i = num_leaves - 1; i > 0; --i) std::swap(order_[i], order_[rng.below(i + 1)]);
    pages_.assign((kShared + kOwn) / page_size_, 0);
  }

  std::span<const Token> prompt(size_t i) const {
    return std::span(prompts_).subspan(order_[i] * (kShared + kOwn), kShared + kOwn);
  }
  std::span<const Token> copy(size_t i) const {  // elsewhere in memory, as a node's tokens are
    return std::span(copies_).subspan(order_[i] * (kShared + kOwn), kShared + kOwn);
  }
  void insert(RadixTree& tree, size_t i) const {
    RadixNode* node = tree.lock("", prompt(i));
    const auto known = static_cast<size_t>(RadixTree::num_tokens_to(node));
    node =
        tree.extend(node, prompt(i).subspan(known), std::span(pages_).subspan(known / page_size_))
            .node;
    tree.unlock(node);
  }

 private:
  const size_t page_size_;
  std::vector<Token> shared_, prompts_, copies_;
  std::vector<size_t> order_;
  std::vector<RadixTree::Page> pages_;
};

Row measure(size_t num_leaves, int32_t page_size) {
  const Workload workload(num_leaves, page_size);
  const size_t num_probes = std::min<size_t>(num_leaves, 20000);
  std::vector<double> hit, miss, compare, insert, evict;
  size_t num_nodes = 0;
  int64_t num_matched = 0, num_equal = 0;
  const std::vector<Token> nowhere(kShared + kOwn, -5);
  for (int round = 0; round < kRounds; ++round) {
    RadixTree tree({.page_size = page_size});
    for (size_t i = num_probes; i < num_leaves; ++i) workload.insert(tree, i);
    insert.push_back(time_each(num_probes, [&](size_t i) { workload.insert(tree, i); }));
    num_nodes = tree.num_nodes();
    const auto match = [&](size_t i) { num_matched += tree.match("", workload.prompt(i)); };
    hit.push_back(time_each(num_probes, match));
    miss.push_back(time_each(num_probes, [&](size_t) { num_matched += tree.match("", nowhere); }));
    compare.push_back(time_each(num_probes, [&](size_t i) {
      num_equal +=
          std::equal_to<>{}(0, std::memcmp(workload.prompt(i).data(), workload.copy(i).data(),
                                           (kShared + kOwn) * sizeof(Token)));
    }));
    const auto leaf_pages = static_cast<int32_t>(kOwn) / page_size;
    evict.push_back(time_each(num_probes, [&](size_t) { tree.evict(leaf_pages, nullptr); }));
  }
  // The answer first: every prompt was found whole, in each round.
  const auto expected =
      static_cast<int64_t>(kRounds) * static_cast<int64_t>(num_probes * (kShared + kOwn));
  if (num_matched != expected || num_equal != expected / int64_t{kShared + kOwn})
    fmt::print(stderr, "WRONG: matched {} of {}\n", num_matched, expected);
  return {num_nodes,    page_size,      median(hit),  median(compare),
          median(miss), median(insert), median(evict)};
}

int run(int argc, char** argv) {
  std::string json_path;
  if (argc == 3 && std::string(argv[1]) == "--json") {
    json_path = argv[2];
  } else if (argc != 1) {
    fmt::print(stderr, "usage: cache_bench [--json FILE]\n");
    return 2;
  }
  std::string json;
  fmt::print("{:>9} {:>9} {:>12} {:>10} {:>13} {:>10} {:>9}   ns each, {} tokens a prompt\n",
             "nodes", "page_size", "match hit", "memcmp", "match miss", "insert", "evict",
             kShared + kOwn);
  for (const int32_t page_size : {1, 16}) {
    for (const size_t num_leaves : {1000u, 10000u, 100000u, 900000u}) {
      const Row r = measure(num_leaves, page_size);
      fmt::print("{:>9} {:>9} {:>12.0f} {:>10.0f} {:>13.0f} {:>10.0f} {:>9.0f}\n", r.num_nodes,
                 r.page_size, r.match_hit_ns, r.memcmp_ns, r.match_miss_ns, r.insert_ns,
                 r.evict_ns);
      json += fmt::format(
          "{}{{\"nodes\": {}, \"page_size\": {}, \"match_hit_ns\": {:.1f}, \"memcmp_ns\": {:.1f}, "
          "\"match_miss_ns\": {:.1f}, \"insert_ns\": {:.1f}, \"evict_ns\": {:.1f}}}",
          json.empty() ? "" : ",\n", r.num_nodes, r.page_size, r.match_hit_ns, r.memcmp_ns,
          r.match_miss_ns, r.insert_ns, r.evict_ns);
    }
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "]\n";
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::run(argc, argv); }
