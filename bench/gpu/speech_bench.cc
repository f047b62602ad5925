#include "speech_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "media/mel.h"
#include "speech/cuda/cuda_whisper.h"
#include "tensor/work_pool.h"

namespace espalier::bench {
namespace {

using speech::DecoderEntry;
using speech::WhisperRunner;
using speech::WhisperSizes;

constexpr int32_t kStreams = 32, kHostThreads = 8;
// Of a window of 30 s of speech at its usual pace, and of the prefix that begins it.
constexpr int32_t kTokens = 112, kPrefix = 4;
constexpr double kWindowSeconds = 30;

double read_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Norms near 1, all else small.
class DrawnTensors final : public speech::TensorSource {
 public:
  explicit DrawnTensors(uint64_t seed) : rng_(seed) {}
  bool has(const std::string& name) const override { return !name.ends_with("k_proj.bias"); }
  Result<std::vector<float>> read(const std::string& name,
                                  const std::vector<int64_t>& shape) override {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const float centre = name.find("norm.weight") != std::string::npos ? 1.0f : 0.0f;
    const double reach = 1.7 * std::sqrt(1.0 / static_cast<double>(shape.back()));
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) {
      const double drawn = static_cast<double>(rng_() >> 40) / (1 << 23) - 1;
      value = centre + static_cast<float>(drawn * reach);
    }
    return out;
  }

 private:
  Rng rng_;
};

MelSpectrogram drawn_mel(const WhisperSizes& sizes, uint64_t seed) {
  MelSpectrogram mel{.num_mels = sizes.num_mels, .num_frames = sizes.window_frames(), .values = {}};
  Rng rng(seed);
  mel.values.resize(static_cast<size_t>(mel.num_mels * mel.num_frames));
  for (float& value : mel.values) value = static_cast<float>(rng.below(2000)) / 1000 - 1;
  return mel;
}

// A window of each stream: encoded, then decoded token by token, all streams in a step. The
// likeliest token of each comes next, which the host finds as a transcriber does.
struct Window {
  double encode_seconds = 0, decode_seconds = 0;
  std::vector<std::vector<TokenId>> tokens;  // of each stream

  double seconds() const { return encode_seconds + decode_seconds; }
};
Result<Window> run_window(WhisperRunner& runner, const WhisperSizes& sizes,
                          const std::vector<MelSpectrogram>& mels, WorkPool& pool) {
  Window out;
  const size_t streams = mels.size(), vocab = static_cast<size_t>(sizes.vocab_size);
  double begin = read_seconds();
  for (size_t i = 0; i < streams; ++i)
    ESP_RETURN_IF_ERROR(runner.set_source(static_cast<int32_t>(i), mels[i], 0));
  out.tokens.assign(streams, std::vector<TokenId>(kPrefix, 1));
  int32_t cached = 0;
  for (int32_t step = 0; step < kTokens; ++step) {
    std::vector<DecoderEntry> entries;
    for (size_t i = 0; i < streams; ++i)
      entries.push_back(
          {.slot = static_cast<int32_t>(i),
           .num_cached = cached,
           .tokens = std::span<const TokenId>(out.tokens[i]).subspan(static_cast<size_t>(cached))});
    ESP_ASSIGN_OR_RETURN(const std::span<const float> logits, runner.step(entries));
    if (step == 0) {  // the first step waits for the encoder
      out.encode_seconds = read_seconds() - begin;
      begin = read_seconds();
    }
    cached = static_cast<int32_t>(out.tokens[0].size());
    std::vector<TokenId> best(streams, -1);
    pool.parallel_for(static_cast<int64_t>(streams), 1, [&](int64_t from, int64_t to) {
      for (auto i = static_cast<size_t>(from); i < static_cast<size_t>(to); ++i) {
        const auto own = logits.subspan(i * vocab, vocab);
        const auto at = std::ranges::max_element(own);
        if (std::isfinite(*at)) best[i] = static_cast<TokenId>(at - own.begin());
      }
    });
    for (size_t i = 0; i < streams; ++i) {
      if (best[i] < 0) return fail(error(StatusCode::kInternal, "a logit is no number"));
      out.tokens[i].push_back(best[i]);
    }
  }
  out.decode_seconds = read_seconds() - begin;
  return out;
}

// The fastest of some.
Result<Window> best_window(WhisperRunner& runner, const WhisperSizes& sizes,
                           const std::vector<MelSpectrogram>& mels, int32_t repeats) {
  WorkPool pool(kHostThreads);
  ESP_ASSIGN_OR_RETURN(Window best, run_window(runner, sizes, mels, pool));
  for (int32_t i = 0; i < repeats; ++i) {
    ESP_ASSIGN_OR_RETURN(Window next, run_window(runner, sizes, mels, pool));
    if (next.tokens != best.tokens)
      return fail(error(StatusCode::kInternal, "the same windows became other tokens"));
    if (next.seconds() < best.seconds()) best = std::move(next);
  }
  return best;
}

}  // namespace

Status run_speech_bench(const SpeechBench& options, const ReportImagesRow& report) {
  ESP_ASSIGN_OR_RETURN(const WhisperSizes sizes, speech::read_whisper_sizes(options.config));
  DrawnTensors tensors(options.seed);
  const DType type = options.dtype == "float32" ? DType::kFloat32 : DType::kBFloat16;
  ESP_ASSIGN_OR_RETURN(const auto runner,
                       speech::make_cuda_runner(sizes, tensors, type, kStreams, 0));
  const int32_t repeats = options.quick ? 2 : 5;
  std::vector<MelSpectrogram> mels;
  for (int32_t i = 0; i < kStreams; ++i)
    mels.push_back(drawn_mel(sizes, options.seed + static_cast<uint64_t>(i) + 1));
  for (const int32_t streams : {1, 8, kStreams}) {
    ESP_ASSIGN_OR_RETURN(
        const Window window,
        best_window(*runner, sizes, {mels.begin(), mels.begin() + streams}, repeats));
    const std::string of = std::to_string(streams) + (streams == 1 ? " stream" : " streams");
    report({"encode a window, first step included, " + of, window.encode_seconds / streams * 1e3,
            "ms a window"});
    report({"decode step, " + of, window.decode_seconds / (kTokens - 1) * 1e3, "ms"});
    report({"sound, " + of, streams * kWindowSeconds / window.seconds(), "s a second"});
  }
  return Status();
}

}  // namespace espalier::bench
