// espalier_bench radix: what the radix tree costs, from a thousand to a million nodes.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstring>
#include <numeric>

#include "apps/bench/report.h"
#include "apps/command_line.h"
#include "base/rng.h"
#include "bench/commands/commands.h"
#include "cache/radix_tree.h"

namespace espalier::bench {
using namespace apps;
namespace {

using Token = RadixTree::Token;
constexpr size_t kSamplesOfOnePrefix = 16;  // leaves below each shared run

struct RadixOptions {
  int32_t shared = 512, own = 64;  // tokens of a parent's run and of a leaf's
  int64_t max_nodes = 1000000;
  int32_t probes = 20000;
  int32_t rounds = 5;
};

struct Row {
  size_t num_nodes = 0;
  int32_t page_size = 1;
  double match_ns = 0, memcmp_ns = 0, miss_ns = 0, insert_ns = 0, evict_ns = 0;
};

double median(std::vector<double> values) { return distribution(std::move(values)).median; }

// Nanoseconds for each of `count` calls.
template <typename Fn>
double time_each(size_t count, const Fn& fn) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) fn(i);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  return elapsed.count() / static_cast<double>(count);
}

// Prompts in groups of 16 leaves below one shared prefix. The timed prompts are kept and spread
// over the tree in random order, so that memory is as cold as in a server. The others are drawn
// when they are inserted.
class Prompts {
 public:
  Prompts(const RadixOptions& options, size_t num_leaves, int32_t page_size)
      : shared_(static_cast<size_t>(options.shared)),
        own_(static_cast<size_t>(options.own)),
        page_size_(static_cast<size_t>(page_size)),
        order_(num_leaves),
        pages_(length() / page_size_, 0) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    Rng rng(num_leaves);
    for (size_t i = num_leaves - 1; i > 0; --i) std::swap(order_[i], order_[rng.below(i + 1)]);
    const size_t num_probes = std::min(num_leaves / 4, static_cast<size_t>(options.probes));
    for (size_t i = 0; i < num_probes; ++i) draw(order_[i], kept_);
    copies_ = kept_;
  }

  size_t length() const { return shared_ + own_; }
  size_t num_leaves() const { return order_.size(); }
  size_t num_probes() const { return kept_.size() / length(); }
  std::span<const Token> probe(size_t i) const { return part(kept_, i); }
  std::span<const Token> copy(size_t i) const { return part(copies_, i); }

  void insert_probe(RadixTree& tree, size_t i) const { insert(tree, probe(i)); }
  void insert_other(RadixTree& tree, size_t i) {
    other_.clear();
    draw(order_[i], other_);
    insert(tree, other_);
  }

 private:
  std::span<const Token> part(const std::vector<Token>& tokens, size_t i) const {
    return std::span(tokens).subspan(i * length(), length());
  }
  void draw(size_t leaf, std::vector<Token>& out) const {
    const size_t group = leaf / kSamplesOfOnePrefix;
    const auto token = [](uint64_t of, uint64_t i) {
      return static_cast<Token>(mix64(of << 20 | i) % 100000);
    };
    for (size_t i = 0; i < shared_; ++i) out.push_back(token(2 * group, i));
    for (size_t i = 0; i < own_; ++i) out.push_back(token(2 * leaf + 1, i));
  }
  void insert(RadixTree& tree, std::span<const Token> prompt) const {
    RadixNode* node = tree.lock("", prompt);
    const auto known = static_cast<size_t>(RadixTree::num_tokens_to(node));
    node = tree.extend(node, prompt.subspan(known), std::span(pages_).subspan(known / page_size_))
               .node;
    tree.unlock(node);
  }

  const size_t shared_, own_, page_size_;
  std::vector<size_t> order_;
  std::vector<Token> kept_, copies_, other_;
  std::vector<RadixTree::Page> pages_;
};

Result<Row> measure(const RadixOptions& options, size_t num_leaves, int32_t page_size) {
  Prompts prompts(options, num_leaves, page_size);
  const size_t num_probes = prompts.num_probes();
  const std::vector<Token> nowhere(prompts.length(), -5);
  std::vector<double> match, miss, compare, insert, evict;
  Row row{.page_size = page_size};
  size_t num_matched = 0, num_equal = 0;
  int64_t num_evicted = 0;
  RadixTree tree({.page_size = page_size, .policy = EvictionPolicy::kMru});
  for (size_t i = num_probes; i < num_leaves; ++i) prompts.insert_other(tree, i);
  for (int32_t round = 0; round < options.rounds; ++round) {
    // The probes are the newest leaves, so eviction by mru removes them, and each round begins with
    // the same tree.
    insert.push_back(time_each(num_probes, [&](size_t i) { prompts.insert_probe(tree, i); }));
    row.num_nodes = tree.num_nodes();
    match.push_back(time_each(num_probes, [&](size_t i) {
      num_matched += static_cast<size_t>(tree.match("", prompts.probe(i)));
    }));
    miss.push_back(time_each(
        num_probes, [&](size_t) { num_matched += static_cast<size_t>(tree.match("", nowhere)); }));
    compare.push_back(time_each(num_probes, [&](size_t i) {
      num_equal += std::memcmp(prompts.probe(i).data(), prompts.copy(i).data(),
                               prompts.length() * sizeof(Token)) == 0
                       ? 1
                       : 0;
    }));
    const int32_t leaf_pages = options.own / page_size;
    evict.push_back(
        time_each(num_probes, [&](size_t) { num_evicted += tree.evict(leaf_pages, nullptr); }));
  }
  // Checks the answers: each round matched every prompt completely and evicted the requested
  // tokens.
  const size_t num_tried = static_cast<size_t>(options.rounds) * num_probes;
  if (num_matched != num_tried * prompts.length() || num_equal != num_tried ||
      num_evicted != static_cast<int64_t>(num_tried) * (options.own / page_size))
    return fail(error(StatusCode::kInternal,
                      "the tree matched {} tokens of {} and evicted {} pages", num_matched,
                      num_tried * prompts.length(), num_evicted));
  row.match_ns = median(std::move(match));
  row.memcmp_ns = median(std::move(compare));
  row.miss_ns = median(std::move(miss));
  row.insert_ns = median(std::move(insert));
  row.evict_ns = median(std::move(evict));
  return row;
}

boost::json::object json_of(const Row& row) {
  boost::json::object out{{"nodes", row.num_nodes}, {"page_size", row.page_size}};
  const auto put = [&](const std::string& name, double ns) {
    out[name + "_ns"] = ns;
    out[name + "_per_second"] = 1e9 / std::max(ns, 1e-3);
  };
  put("match", row.match_ns);
  put("match_miss", row.miss_ns);
  put("insert", row.insert_ns);
  put("evict", row.evict_ns);
  out["memcmp_ns"] = row.memcmp_ns;
  return out;
}

}  // namespace

int run_radix(const std::vector<std::string>& args) {
  RadixOptions options;
  FigureOutput output;
  SettingTable table;
  table.group("Tree");
  table.integer("shared-len", options.shared, 0, 1 << 20, "tokens of each shared run");
  table.integer("own-len", options.own, 16, 1 << 16, "tokens of each leaf");
  table.integer("max-nodes", options.max_nodes, 1000, 10000000, "leaves of the largest tree");
  table.integer("probes", options.probes, 1, 1000000,
                "leaves that are timed, in random order (a quarter of a tree at most)");
  table.integer("rounds", options.rounds, 1, 1000, "of which the median is told");
  table.group("Output");
  output.add_setting(table);
  CommandLine command{
      "espalier_bench radix",
      "Times match, insert and evict of the radix tree, 1,000 nodes to a million, beside memcmp.",
      "Times are of one prompt: match of a whole prompt that is cached; miss of one whose first\n"
      "token leads nowhere; insert: lock, extend and unlock of a new leaf; evict: one whole leaf.\n"
      "Memcmp compares as many tokens as a match does, alone: its floor.",
      "",
      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  if (options.own % 16 != 0 || options.shared % 16 != 0)
    return report(invalid_argument("shared-len and own-len must be multiples of 16, the largest "
                                   "page size that is timed"),
                  kExitUsage);

  boost::json::array rows;
  output.print("{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}   ns, {} tokens a prompt\n", "nodes",
               "page size", "match", "memcmp", "miss", "insert", "evict",
               options.shared + options.own);
  for (const int32_t page_size : {1, 16}) {
    for (size_t leaves = 1000; leaves <= static_cast<size_t>(options.max_nodes); leaves *= 10) {
      const Result<Row> row = measure(options, leaves, page_size);
      if (!row) return report(row.error(), kExitFailure);
      output.print("{:>9} {:>9} {:>9.0f} {:>9.0f} {:>9.0f} {:>9.0f} {:>9.0f}\n", row->num_nodes,
                   page_size, row->match_ns, row->memcmp_ns, row->miss_ns, row->insert_ns,
                   row->evict_ns);
      rows.push_back(json_of(*row));
    }
  }
  return output.finish(boost::json::serialize(rows));
}

}  // namespace espalier::bench
