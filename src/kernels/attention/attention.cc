#include "kernels/attention/op.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/cpu/table.h"
#include "kernels/kv_layer.h"

namespace espalier::kernels {
namespace {

// A work item: a few tokens of an entry under a few key/value heads, over their whole context, or
// over one split of it.
struct WorkItem {
  int32_t entry;
  int32_t kv_head;  // the first of them
  int32_t kv_heads;
  int32_t token;  // within the entry
  int32_t tokens;
  int64_t begin, end;  // positions
  int64_t state;       // floats into the states of split work items; -1: whole
};

// Rows of split queries, to be combined when their partial results are done.
struct Split {
  int32_t entry;
  int32_t kv_head;
  int32_t kv_heads;
  int32_t token;
  int32_t tokens;
  int32_t partials;
  int64_t state;  // of the first partial result; a partial result's rows are adjacent, and so are
                  // the partial results
};

constexpr size_t align(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The division of a step's attention into work items. It decides which thread computes what, never
// the result: splits lie at absolute positions and are combined in order whether one thread
// computes them or many.
class Plan {
 public:
  Plan(CpuBackend& backend, const AttentionArgs& args)
      : args_(args),
        kv_heads_(args.kv->layer(args.layer).num_kv_heads),
        group_(args.heads / kv_heads_),
        tile_tokens_(std::max<int64_t>(1, kAttentionTileRows / group_)),
        state_floats_(backend.table().attention_state(args.kv->layer(args.layer).head_dim)),
        work_items_wanted_(4 * backend.pool().num_threads()) {
    for (const BatchEntry& entry : args.entries) {
      const int64_t tiles = (entry.num_query_tokens + tile_tokens_ - 1) / tile_tokens_;
      const int64_t context = entry.prefix_len + entry.num_query_tokens;
      tiles_and_splits_ += tiles > 1 ? tiles : (context - 1) / kAttentionSplit + 1;
    }
  }

  int64_t group() const { return group_; }
  int64_t max_rows() const { return std::max(group_, kAttentionTileRows); }

  // Calls item(WorkItem) and split(Split) for all work items and splits.
  template <typename WorkItemFn, typename SplitFn>
  void each(const WorkItemFn& item, const SplitFn& split) const {
    int64_t state = 0;
    for (size_t index = 0; index < args_.entries.size(); ++index) {
      const BatchEntry& entry = args_.entries[index];
      // The last tokens come first: they have the longest contexts, and a long work item that
      // starts late delays the end of the call.
      const int64_t tiles = (entry.num_query_tokens + tile_tokens_ - 1) / tile_tokens_;
      for (int64_t tile = tiles - 1; tile >= 0; --tile) {
        const int64_t token = tile * tile_tokens_;
        const int32_t step =
            heads_at_once(std::min<int64_t>(tile_tokens_, entry.num_query_tokens - token));
        for (int32_t kv_head = 0; kv_head < kv_heads_; kv_head += step) {
          const int32_t kv_heads = std::min(step, kv_heads_ - kv_head);
          cut_tile(static_cast<int32_t>(index), kv_head, kv_heads, token, tiles == 1, item, split,
                   state);
        }
      }
    }
  }

 private:
  // Heads of one token are adjacent in memory, so a work item takes as many as its rows allow, as
  // long as there are enough work items for all threads.
  int32_t heads_at_once(int64_t tokens) const {
    const int64_t fit = kAttentionTileRows / (tokens * group_);
    const int64_t spread = kv_heads_ * tiles_and_splits_ / work_items_wanted_;
    return static_cast<int32_t>(std::clamp<int64_t>(std::min(fit, spread), 1, kv_heads_));
  }

  template <typename WorkItemFn, typename SplitFn>
  void cut_tile(int32_t index, int32_t kv_head, int32_t kv_heads, int64_t token, bool may_split,
                const WorkItemFn& item, const SplitFn& split, int64_t& state) const {
    const BatchEntry& entry = args_.entries[static_cast<size_t>(index)];
    const int64_t tokens = std::min<int64_t>(tile_tokens_, entry.num_query_tokens - token);
    const int64_t first = entry.prefix_len + token;
    const int64_t end = first + tokens;
    const int64_t window = args_.window_of(static_cast<size_t>(index));
    const int64_t seen = window > 0 ? std::max<int64_t>(0, first - window + 1) : 0;
    WorkItem whole = {index,
                      kv_head,
                      kv_heads,
                      static_cast<int32_t>(token),
                      static_cast<int32_t>(tokens),
                      seen / kAttentionBlock * kAttentionBlock,
                      end,
                      -1};
    const int64_t first_split = whole.begin / kAttentionSplit;
    const int64_t partials = (end - 1) / kAttentionSplit - first_split + 1;
    if (!may_split || partials == 1) {
      item(whole);
      return;
    }
    const int64_t partial_floats = kv_heads * tokens * group_ * state_floats_;
    split(Split{index, kv_head, kv_heads, whole.token, whole.tokens, static_cast<int32_t>(partials),
                state});
    for (int64_t partial = 0; partial < partials; ++partial, state += partial_floats) {
      WorkItem one = whole;
      one.begin = std::max(whole.begin, (first_split + partial) * kAttentionSplit);
      one.end = std::min<int64_t>(end, (first_split + partial + 1) * kAttentionSplit);
      one.state = state;
      item(one);
    }
  }

  const AttentionArgs& args_;
  const int32_t kv_heads_;
  const int64_t group_;
  const int64_t tile_tokens_;
  const int64_t state_floats_;
  const int64_t work_items_wanted_;
  int64_t tiles_and_splits_ = 0;  // of all entries, under one key/value head
};

// The backend's scratch, divided into the plan's lists, the states of split work items and each
// thread's own scratch.
struct Workspace {
  WorkItem* work_items;
  Split* splits;
  float* states;
  std::byte* threads;
  size_t thread_bytes;
  int64_t num_work_items = 0;
  int64_t num_splits = 0;
};

Workspace make_workspace(CpuBackend& backend, const AttentionArgs& args, const Plan& plan) {
  const int64_t head_dim = args.kv->layer(args.layer).head_dim;
  int64_t work_items = 0, splits = 0, states = 0;
  const int64_t state_floats = backend.table().attention_state(head_dim);
  plan.each([&](const WorkItem&) { ++work_items; },
            [&](const Split& split) {
              ++splits;
              states += static_cast<int64_t>(split.partials) * split.kv_heads * split.tokens *
                        plan.group() * state_floats;
            });
  const size_t work_item_bytes = align(static_cast<size_t>(work_items) * sizeof(WorkItem));
  const size_t split_bytes = align(static_cast<size_t>(splits) * sizeof(Split));
  const size_t state_bytes = align(static_cast<size_t>(states) * sizeof(float));
  const size_t thread_bytes =
      align(static_cast<size_t>(backend.table().attention_scratch(plan.max_rows(), head_dim)) *
            sizeof(float));
  std::byte* at = backend.scratch(work_item_bytes + split_bytes + state_bytes +
                                  static_cast<size_t>(backend.pool().num_threads()) * thread_bytes);
  Workspace space;
  space.work_items = reinterpret_cast<WorkItem*>(at);
  space.splits = reinterpret_cast<Split*>(at + work_item_bytes);
  space.states = reinterpret_cast<float*>(at + work_item_bytes + split_bytes);
  space.threads = at + work_item_bytes + split_bytes + state_bytes;
  space.thread_bytes = thread_bytes;
  plan.each([&](const WorkItem& item) { space.work_items[space.num_work_items++] = item; },
            [&](const Split& split) { space.splits[space.num_splits++] = split; });
  return space;
}

AttentionTile tile_of(const AttentionArgs& args, const Plan& plan, const Workspace& space,
                      const WorkItem& item) {
  const KvView::Layer& kv = args.kv->layer(args.layer);
  const BatchEntry& entry = args.entries[static_cast<size_t>(item.entry)];
  const int64_t token = entry.query_begin + item.token;
  const int64_t head = item.kv_head * plan.group() * kv.head_dim;
  const int64_t plane_bytes = item.kv_head * kv.head_stride * kv_element_bytes(kv.type);
  return {
      .q = args.q + token * args.q_stride + head,
      .q_stride = args.q_stride,
      .out = args.out + token * args.out_stride + head,
      .out_stride = args.out_stride,
      .kv_heads = item.kv_heads,
      .tokens = item.tokens,
      .group = plan.group(),
      .head_dim = kv.head_dim,
      .first_position = entry.prefix_len + item.token,
      .begin = item.begin,
      .end = item.end,
      .k = static_cast<const std::byte*>(kv.k) + plane_bytes,
      .v = static_cast<const std::byte*>(kv.v) + plane_bytes,
      .bf16 = kv.type == KvType::kBFloat16,
      .page_table =
          args.page_offsets.empty() ? args.page_tables.data() + entry.page_begin : nullptr,
      .page_offsets =
          args.page_offsets.empty() ? nullptr : args.page_offsets.data() + entry.page_begin,
      .page_size = args.kv->page_size,
      .page_stride = kv.page_stride,
      .token_stride = kv.token_stride,
      .head_stride = kv.head_stride,
      .scale = args.scale,
      .sliding_window = args.window_of(static_cast<size_t>(item.entry)),
      .softcap = args.softcap,
      .sinks = args.sinks == nullptr ? nullptr : args.sinks + item.kv_head * plan.group(),
      .state = item.state < 0 ? nullptr : space.states + item.state,
  };
}

void combine(CpuBackend& backend, const AttentionArgs& args, const Plan& plan,
             const Workspace& space, const Split& split) {
  const int64_t dim = args.kv->layer(args.layer).head_dim;
  const int64_t state_floats = backend.table().attention_state(dim);
  const BatchEntry& entry = args.entries[static_cast<size_t>(split.entry)];
  const int64_t head_rows = split.tokens * plan.group(), rows = split.kv_heads * head_rows;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = entry.query_begin + split.token + row % head_rows / plan.group();
    const int64_t head = (split.kv_head + row / head_rows) * plan.group() + row % plan.group();
    backend.table().attention_combine(space.states + split.state + row * state_floats,
                                      rows * state_floats, split.partials, dim,
                                      args.sinks == nullptr ? nullptr : args.sinks + head,
                                      args.out + token * args.out_stride + head * dim);
  }
}

}  // namespace

void attention(CpuBackend& backend, const AttentionArgs& args) {
  const KvView::Layer& kv = args.kv->layer(args.layer);
  const Status taken = check_kv_layer(kv);
  ESP_CHECK(taken.ok(), "{}", taken.message());
  ESP_CHECK(kv.num_kv_heads > 0 && args.heads % kv.num_kv_heads == 0,
            "{} query heads on {} key/value heads", args.heads, kv.num_kv_heads);
  const Plan plan(backend, args);
  const Workspace space = make_workspace(backend, args, plan);
  std::atomic<int64_t> next{0};
  const auto work = [&](int thread) {
    auto* own =
        reinterpret_cast<float*>(space.threads + static_cast<size_t>(thread) * space.thread_bytes);
    while (true) {
      const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= space.num_work_items) return;
      backend.table().attention(tile_of(args, plan, space, space.work_items[index]), own);
    }
  };
  space.num_work_items == 1 ? work(0) : backend.pool().run(work);
  if (space.num_splits == 0) return;
  backend.pool().parallel_for(space.num_splits, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) combine(backend, args, plan, space, space.splits[i]);
  });
}

}  // namespace espalier::kernels
