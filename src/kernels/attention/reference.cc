#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/op.h"
#include "tensor/dtype.h"

namespace espalier::kernels::reference {
namespace {

double element(const KvView::Layer& kv, const void* plane, int64_t page, int64_t row, int64_t head,
               int64_t i) {
  const int64_t index = page + row * kv.token_stride + head * kv.head_stride + i;
  return kv.type == KvType::kFloat32 ? static_cast<const float*>(plane)[index]
                                     : to_float(static_cast<const BFloat16*>(plane)[index]);
}

// One query over positions [first, last].
void attend(const AttentionArgs& args, const BatchEntry& entry, int64_t kv_head, int64_t first,
            int64_t last, const float* q, const float* sink, float* out) {
  const KvView::Layer& kv = args.kv->layer(args.layer);
  const int64_t page_size = args.kv->page_size;
  const auto page_of = [&](int64_t position) {
    const auto at = static_cast<size_t>(entry.page_begin + position / page_size);
    return args.page_offsets.empty() ? args.page_tables[at] * kv.page_stride
                                     : args.page_offsets[at];
  };
  std::vector<double> weights;
  for (int64_t position = first; position <= last; ++position) {
    double score = 0;
    for (int64_t i = 0; i < kv.head_dim; ++i) {
      score += q[i] * element(kv, kv.k, page_of(position), position % page_size, kv_head, i);
    }
    score *= args.scale;
    if (args.softcap > 0) score = args.softcap * std::tanh(score / args.softcap);
    weights.push_back(score);
  }
  double largest = *std::max_element(weights.begin(), weights.end());
  if (sink != nullptr) largest = std::max<double>(largest, *sink);
  double sum = sink == nullptr ? 0 : std::exp(*sink - largest);
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (int64_t i = 0; i < kv.head_dim; ++i) {
    double value = 0;
    for (int64_t position = first; position <= last; ++position) {
      value += weights[static_cast<size_t>(position - first)] *
               element(kv, kv.v, page_of(position), position % page_size, kv_head, i);
    }
    out[i] = static_cast<float>(value / sum);
  }
}

}  // namespace

void attention(const AttentionArgs& args) {
  const KvView::Layer& kv = args.kv->layer(args.layer);
  const int64_t group = args.heads / kv.num_kv_heads;
  for (size_t index = 0; index < args.entries.size(); ++index) {
    const BatchEntry& entry = args.entries[index];
    const int64_t window = args.window_of(index);
    for (int64_t i = 0; i < entry.num_query_tokens; ++i) {
      const int64_t last = entry.prefix_len + i;
      const int64_t first = window > 0 ? std::max<int64_t>(0, last - window + 1) : 0;
      for (int64_t head = 0; head < args.heads; ++head) {
        attend(args, entry, head / group, first, last,
               args.q + (entry.query_begin + i) * args.q_stride + head * kv.head_dim,
               args.sinks == nullptr ? nullptr : args.sinks + head,
               args.out + (entry.query_begin + i) * args.out_stride + head * kv.head_dim);
      }
    }
  }
}

}  // namespace espalier::kernels::reference
