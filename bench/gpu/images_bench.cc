#include "images_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "bench/gpu/gemm_rate.h"
#include "bench/pending_requests.h"
#include "engine/engine.h"
#include "models/cuda/encoder.h"
#include "models/model_plan.h"

namespace espalier::bench {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

SteadyTime read_clock() { return std::chrono::steady_clock::now(); }
double seconds_from(SteadyTime start) {
  return std::chrono::duration<double>(read_clock() - start).count();
}

// Of a picture, in pixels: what a tile shows, or where any size will do a photograph's.
int32_t side_of(const ImageProcessorSpec& processor) {
  constexpr int32_t kPhotograph = 1024, kTile = 336;
  return processor.area ? kPhotograph : kTile;
}

// Work of a picture: GEMMs, and attention of all rows with all rows, or with those of their window.
struct EncoderWork {
  double gemm = 0, attention = 0;
};
EncoderWork work_of(const DecoderSpec& spec, const PreparedImage& image) {
  const PatchesSpec& of = *spec.patches;
  const double tiles = image.num_tiles, patches = image.grid.size();
  const double rows = patches + (of.class_token ? 1 : 0), hidden = spec.hidden_size;
  double windows = 0;  // pairs of rows that see each other there
  int32_t begin = 0;
  for (const int32_t end : order_patches(image.grid, of).window_ends) {
    windows += double(end - begin) * (end - begin);
    begin = end;
  }
  EncoderWork out{.gemm = 2 * patches * of.features() * hidden};
  for (const LayerSpec& layer : spec.layers) {
    const double width = layer.attention.q_dim();
    const double matrices = layer.mlp.gated ? 3 : 2;
    out.gemm += 2 * rows * (4 * hidden * width + matrices * hidden * layer.mlp.intermediate_size);
    out.attention += 4 * (layer.attention.windowed ? windows : rows * rows) * width;
  }
  const double outputs = patches / spec.projector->merge;
  double inputs = hidden * spec.projector->merge;
  for (const auto& layer : spec.projector->layers) {
    out.gemm += 2 * outputs * inputs * layer.outputs;
    inputs = layer.outputs;
  }
  return {.gemm = tiles * out.gemm, .attention = tiles * out.attention};
}

// Pictures a second of `threads` callers with batches of so many.
Result<double> encoder_rate(CudaEncoder& encoder, const PreparedImage& image, int32_t pictures,
                            int threads, int turns) {
  Status failed;
  std::mutex mutex;
  const auto work = [&](int count) {
    std::vector<EncodedRows> rows(static_cast<size_t>(pictures));
    std::vector<EncoderTask> tasks;
    Status status;
    for (EncodedRows& one : rows) {
      auto made = encoder.allocate_rows(image.num_rows);
      if (made) one = *std::move(made);
      if (!made) status = made.error();
      tasks.push_back({&image, &one});
    }
    for (int i = 0; i < count && status.ok(); ++i) status = encoder.encode_batch(tasks);
    const std::lock_guard lock(mutex);
    if (failed.ok()) failed = std::move(status);
  };
  const auto run = [&](int count) {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) all.emplace_back(work, count);
    for (std::thread& thread : all) thread.join();
  };
  run(2);
  const SteadyTime start = read_clock();
  run(turns);
  ESP_RETURN_IF_ERROR(failed);
  return pictures * threads * turns / seconds_from(start);
}

Status run_encoder(const ImagesBench& options, const ReportImagesRow& report) {
  const ModelLoadOptions load{.path = options.config,
                              .format = LoadFormat::kDummy,
                              .seed = options.seed,
                              .dtype = options.dtype};
  ESP_ASSIGN_OR_RETURN(const auto plan, plan_image_encoder(load));
  if (!plan) return invalid_argument("{} reads text alone", options.config);
  ESP_ASSIGN_OR_RETURN(const auto encoder, CudaEncoder::load(load, {}));
  const PatchesSpec& of = *plan->spec.patches;
  const int32_t side = side_of(plan->processor);
  ESP_ASSIGN_OR_RETURN(PreparedImage image, encoder->plan({side, side}));
  const EncoderWork work = work_of(plan->spec, image);
  const int32_t rows = image.num_tiles * (image.grid.size() + (of.class_token ? 1 : 0));
  Rng rng(3);
  image.patches.resize(static_cast<size_t>(image.num_tiles * image.grid.size()) *
                       static_cast<size_t>(of.features()));
  for (float& value : image.patches) value = static_cast<float>(rng.uniform() - 0.5);
  for (const int32_t pictures : {16, 8, 4, 2, 1}) {
    if (pictures > encoder->batch_max()) continue;
    ESP_ASSIGN_OR_RETURN(const double roof, gemm_rate(plan->spec, pictures * rows));
    for (const int threads : {1, 2}) {
      ESP_ASSIGN_OR_RETURN(const double rate, encoder_rate(*encoder, image, pictures, threads,
                                                           options.quick ? 10 : 40));
      const std::string name = "encoder, batches of " + std::to_string(pictures) + ", " +
                               std::to_string(threads) + " in flight";
      report({name, rate, "images/s"});
      report({name, rate * (work.gemm + work.attention) / 1e12, "TFLOP/s"});
      report({name, 100 * rate * (work.gemm + work.attention) / roof, "% of its GEMMs' rate"});
    }
    report({"GEMMs of batches of " + std::to_string(pictures), roof / 1e12, "TFLOP/s"});
  }
  return Status();
}

// A picture of its own for each number, as an uncompressed file.
std::string picture_file(uint64_t number, int32_t side) {
  std::string file(54 + static_cast<size_t>(side) * static_cast<size_t>(side) * 3, '\0');
  const auto put = [&](size_t at, uint32_t value) { std::memcpy(file.data() + at, &value, 4); };
  file[0] = 'B', file[1] = 'M';
  put(2, static_cast<uint32_t>(file.size()));
  put(10, 54);
  put(14, 40);
  put(18, static_cast<uint32_t>(side));
  put(22, static_cast<uint32_t>(side));
  put(26, 1 | 24 << 16);
  Rng rng(number);
  for (size_t i = 54; i + 8 <= file.size(); i += 8) {
    const uint64_t noise = rng();
    std::memcpy(file.data() + i, &noise, 8);
  }
  return file;
}

ImageInput picture(uint64_t number, int32_t side) {
  const auto file = std::make_shared<const std::string>(picture_file(number, side));
  return {.read = [file]() -> Result<std::string> { return *file; },
          .source_bytes = static_cast<int64_t>(file->size())};
}

class Requests {
 public:
  Requests(const ImagesBench& options, int32_t running) : options_(options), running_(running) {}

  Status start() {
    ESP_ASSIGN_OR_RETURN(engine_, Engine::create({.model = {.model_path = options_.config,
                                                            .dtype = options_.dtype,
                                                            .load_format = LoadFormat::kDummy,
                                                            .skip_tokenizer_init = true},
                                                  .compute = {.device = "cuda"},
                                                  .schedule = {.max_running_requests = running_},
                                                  .sampling = {.random_seed = options_.seed}}));
    const auto info = engine_->model_info();
    if (!info.images) return invalid_argument("{} reads text alone", options_.config);
    images_ = *info.images;
    ESP_ASSIGN_OR_RETURN(const auto plan, plan_image_encoder({.path = options_.config,
                                                              .format = LoadFormat::kDummy,
                                                              .dtype = options_.dtype}));
    side_ = side_of(plan->processor);
    ESP_ASSIGN_OR_RETURN(const GenerateResult one, engine_->generate(request(true, 1, 1, 0)));
    rows_ = one.stats.prompt_tokens - 1;
    return Status();
  }
  Engine& engine() { return *engine_; }
  int32_t rows() const { return rows_; }  // of a picture

  // A prompt of `text` drawn tokens, behind a picture where there is one.
  GenerateRequest request(bool seen, int32_t text, int32_t outputs, uint64_t number) {
    GenerateRequest out;
    if (seen) {
      out.input_ids = {images_.placeholder};
      out.images = {picture(number, side_)};
    }
    Rng rng(number + 1000);
    for (int32_t i = 0; i < text; ++i)
      out.input_ids.push_back(static_cast<TokenId>(rng.below(30000)));
    out.sampling.max_new_tokens = outputs;
    out.sampling.temperature = 0;
    out.sampling.ignore_eos = true;
    return out;
  }

  Status warm_up(std::vector<GenerateRequest> requests) {
    const auto seconds = run(std::move(requests));
    return seconds ? Status() : seconds.error();
  }
  // All at once; seconds.
  Result<double> run(std::vector<GenerateRequest> requests) {
    const auto pending = std::make_shared<PendingRequests>(static_cast<int32_t>(requests.size()));
    const SteadyTime start = read_clock();
    for (GenerateRequest& request : requests) {
      const auto rid = engine_->submit(std::move(request),
                                       [pending](TokenEvent&& event) { pending->add(event); });
      if (!rid) return fail(rid.error());
    }
    ESP_RETURN_IF_ERROR(pending->wait());
    return seconds_from(start);
  }

 private:
  const ImagesBench& options_;
  const int32_t running_;
  std::unique_ptr<Engine> engine_;
  ImagesInfo images_;
  int32_t side_ = 0, rows_ = 0;
};

Status run_requests(const ImagesBench& options, const ReportImagesRow& report) {
  for (const int32_t count : {32, 64}) {
    Requests bench(options, count);
    ESP_RETURN_IF_ERROR(bench.start());
    const auto batch = [&](bool seen, int32_t turns, uint64_t first) {
      std::vector<GenerateRequest> out;
      for (int32_t i = 0; i < count * turns; ++i)
        out.push_back(bench.request(seen, seen ? 16 : 16 + bench.rows(), 64,
                                    first + static_cast<uint64_t>(i)));
      return out;
    };
    ESP_RETURN_IF_ERROR(bench.warm_up(batch(true, 1, 100000)));
    for (const bool seen : {true, false}) {
      const int32_t turns = options.quick ? 2 : 4;
      ESP_ASSIGN_OR_RETURN(const double seconds,
                           bench.run(batch(seen, turns, seen ? 200000 : 300000)));
      report({std::to_string(count) + (seen ? " requests with a picture at once"
                                            : " requests with as many tokens at once"),
              count * turns / seconds, seen ? "images/s" : "requests/s"});
    }
  }
  return Status();
}

// Times between the tokens of text streams.
class Streams {
 public:
  EventSink sink() {
    return [last = SteadyTime(), this](TokenEvent&& event) mutable {
      const SteadyTime time = read_clock();
      const std::lock_guard lock(mutex_);
      if (last != SteadyTime() && !event.ids.empty())
        gaps_.push_back(std::chrono::duration<double>(time - last).count());
      if (!event.ids.empty()) last = time;
      if (event.finish) ++ended_;
    };
  }
  int ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  double percentile(double share) {
    const std::lock_guard lock(mutex_);
    if (gaps_.empty()) return 0;
    std::sort(gaps_.begin(), gaps_.end());
    return gaps_[std::min(gaps_.size() - 1,
                          static_cast<size_t>(share * static_cast<double>(gaps_.size())))];
  }

 private:
  std::mutex mutex_;
  std::vector<double> gaps_;
  int ended_ = 0;
};

// 32 streams of 400 tokens; beside them nothing, requests of a picture, or of as many tokens, one
// every 50 ms, each with one token out.
Status run_streams(const ImagesBench& options, const ReportImagesRow& report) {
  constexpr int kStreams = 32;
  Requests bench(options, 64);
  ESP_RETURN_IF_ERROR(bench.start());
  std::vector<GenerateRequest> warm;
  for (uint64_t i = 0; i < 16; ++i) warm.push_back(bench.request(true, 16, 8, 400000 + i));
  ESP_RETURN_IF_ERROR(bench.warm_up(std::move(warm)));
  uint64_t number = 500000;
  for (const char* beside : {"alone", "beside pictures", "beside prompts of as many tokens"}) {
    Streams streams;
    for (int i = 0; i < kStreams; ++i) {
      const auto rid =
          bench.engine().submit(bench.request(false, 128, 400, ++number), streams.sink());
      if (!rid) return rid.error();
    }
    Streams others;
    int submitted = 0;
    while (streams.ended() < kStreams) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (std::string_view(beside) == "alone") continue;
      const bool seen = std::string_view(beside) == "beside pictures";
      const auto rid = bench.engine().submit(
          bench.request(seen, seen ? 16 : 16 + bench.rows(), 1, ++number), others.sink());
      if (!rid) return rid.error();
      ++submitted;
    }
    while (others.ended() < submitted) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::string name = "32 text streams " + std::string(beside);
    report({name + ", median between tokens", streams.percentile(0.5) * 1e3, "ms"});
    report({name + ", 99 % between tokens", streams.percentile(0.99) * 1e3, "ms"});
  }
  return Status();
}

// The first and the second question about one picture, nothing else running.
Status run_question(const ImagesBench& options, const ReportImagesRow& report) {
  Requests bench(options, 8);
  ESP_RETURN_IF_ERROR(bench.start());
  ESP_RETURN_IF_ERROR(bench.warm_up({bench.request(true, 16, 4, 600000)}));
  std::vector<double> first, second, shares;
  for (uint64_t i = 0; i < 10; ++i) {
    for (const bool again : {false, true}) {
      GenerateRequest request = bench.request(true, 0, 1, 700000 + i);
      for (TokenId id = 1; id <= 5; ++id) request.input_ids.push_back((again ? 200 : 100) + id);
      const SteadyTime start = read_clock();
      ESP_ASSIGN_OR_RETURN(const GenerateResult result,
                           bench.engine().generate(std::move(request)));
      (again ? second : first).push_back(seconds_from(start));
      if (again) shares.push_back(100.0 * result.stats.cached_tokens / result.stats.prompt_tokens);
    }
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  report({"first question about a picture, to the first token", median(first) * 1e3, "ms"});
  report({"second question about it, to the first token", median(second) * 1e3, "ms"});
  report({"cached share of its prompt", median(shares), "%"});
  return Status();
}

}  // namespace

Status run_images_bench(const ImagesBench& options, const ReportImagesRow& report) {
  const auto wanted = [&](std::string_view part) { return part.find(options.only) != part.npos; };
  if (wanted("encoder")) ESP_RETURN_IF_ERROR(run_encoder(options, report));
  if (wanted("question")) ESP_RETURN_IF_ERROR(run_question(options, report));
  if (wanted("requests")) ESP_RETURN_IF_ERROR(run_requests(options, report));
  if (wanted("streams")) ESP_RETURN_IF_ERROR(run_streams(options, report));
  return Status();
}

}  // namespace espalier::bench
