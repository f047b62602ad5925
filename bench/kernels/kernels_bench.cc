// kernels_bench: the CPU kernels at the shapes of a 1.24 B Llama, against the machine's own read
// rate and peak, in one run. kernels_test checks that the results are right.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/attention/op.h"
#include "kernels/linear/op.h"
#include "kernels/norm/op.h"
#include "peaks.h"

namespace espalier::kernels::bench {
namespace {

// Llama-3.2-1B.
constexpr int64_t kHidden = 2048, kFfn = 8192, kQkv = 3072, kVocab = 128256;
constexpr int32_t kLayers = 16, kHeads = 32, kKvHeads = 8, kHeadDim = 64;

// "products" is the former name of "gemm".
const std::vector<std::string> kParts = {"light", "attention", "experts", "gemm", "products"};

struct Options {
  int threads = 0;
  std::string isa;
  std::string quantization;  // empty: numbers
  std::string json;
  std::vector<std::string> parts;  // of kParts; empty: all
  int layers = kLayers;
  std::vector<int64_t> rows = {1, 4, 16, 64, 512};
  int repeats = 5;
  bool float32 = false;
  Stopwatch watch;

  bool wants(std::string_view part) const {
    return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
  }
};

// One line of the result: what, and each figure by name.
struct Row {
  std::string name;
  std::vector<std::pair<std::string, double>> figures;
};

class Report {
 public:
  void add(Row row) {
    std::string line = fmt::format("{:<34}", row.name);
    for (const auto& [name, value] : row.figures) line += fmt::format("  {} {:.5g}", name, value);
    std::puts(line.c_str());
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  void write_json(const std::string& path) const {
    std::ofstream file(path);
    file << "{\n";
    for (size_t i = 0; i < rows_.size(); ++i) {
      file << fmt::format("  \"{}\": {{", rows_[i].name);
      for (size_t j = 0; j < rows_[i].figures.size(); ++j) {
        file << fmt::format("{}\"{}\": {:.6g}", j == 0 ? "" : ", ", rows_[i].figures[j].first,
                            rows_[i].figures[j].second);
      }
      file << (i + 1 < rows_.size() ? "},\n" : "}\n");
    }
    file << "}\n";
  }

 private:
  std::vector<Row> rows_;
};

struct Timing {
  double median, best;
};

template <typename Fn>
Timing time_of(const Options& options, const Fn& fn) {
  fn();
  std::vector<double> seconds;
  for (int i = 0; i < options.repeats; ++i) {
    const double begin = options.watch.now_seconds();
    fn();
    seconds.push_back(options.watch.now_seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front()};
}

std::vector<float> normals(Rng& rng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.normal());
  return values;
}

// The weights of the model, each matrix in memory of its own.
struct Model {
  struct Layer {
    PackedMatrix qkv, o, gate_up, down;
  };
  std::vector<Layer> layers;
  PackedMatrix head;

  double bytes() const {
    double sum = static_cast<double>(head.size_bytes());
    for (const Layer& layer : layers) {
      sum += static_cast<double>(layer.qkv.size_bytes() + layer.o.size_bytes() +
                                 layer.gate_up.size_bytes() + layer.down.size_bytes());
    }
    return sum;
  }
};

// The source that matrices are packed from: numbers, or blocks of the requested format.
class Source {
 public:
  Source(Rng& rng, const Options& options, int64_t weights)
      : type_(options.float32 ? DType::kFloat32 : DType::kBFloat16),
        format_(parse_block_format(options.quantization)) {
    if (!format_) {
      numbers_.resize(static_cast<size_t>(weights));
      for (BFloat16& number : numbers_) {
        number = to_bfloat16(static_cast<float>(rng.uniform() - 0.5) * 0.1f);
      }
      return;
    }
    const BlockFormatInfo& info = block_format_info(*format_);
    blocks_.resize(static_cast<size_t>(weights / info.elements) * info.bytes);
    // Any bytes but with bit 6 clear: then every float16 among them is smaller than 2.
    for (std::byte& byte : blocks_) byte = static_cast<std::byte>(rng.below(256) & 0xbf);
    if (*format_ != BlockFormat::kMxfp4) return;
    // Its blocks begin with an exponent, which would make half of them subnormal.
    for (size_t at = 0; at < blocks_.size(); at += info.bytes) blocks_[at] = std::byte{120};
  }

  PackedMatrix pack(CpuBackend& backend, int64_t in, int64_t out, bool gate_up) const {
    const WeightRows rows = {
        .data = format_ ? static_cast<const void*>(blocks_.data()) : numbers_.data(),
        .rows = gate_up ? out / 2 : out,
        .format = format_};
    const WeightRows both[] = {rows, rows};
    auto packed = PackedMatrix::pack(backend, {.in_features = in,
                                               .type = type_,
                                               .blocks = {both, gate_up ? 2u : 1u},
                                               .gate_up = gate_up});
    ESP_CHECK(packed.has_value(), "{}", packed.error().message());
    return std::move(*packed);
  }

 private:
  DType type_;
  std::optional<BlockFormat> format_;
  std::vector<BFloat16> numbers_;
  std::vector<std::byte> blocks_;
};

Model make_model(CpuBackend& backend, const Options& options) {
  Rng rng(1);
  const Source source(rng, options, kVocab * kHidden);
  Model model;
  for (int i = 0; i < options.layers; ++i) {
    model.layers.push_back({source.pack(backend, kHidden, kQkv, false),
                            source.pack(backend, kHidden, kHidden, false),
                            source.pack(backend, kHidden, 2 * kFfn, true),
                            source.pack(backend, kFfn, kHidden, false)});
  }
  model.head = source.pack(backend, kHidden, kVocab, false);
  return model;
}

// All GEMMs of a step: `rows` tokens, the head for `head_rows` of them.
class Gemms {
 public:
  Gemms(CpuBackend& backend, const Model& model, int64_t rows)
      : backend_(backend), model_(model), rows_(rows) {
    Rng rng(2);
    x_ = normals(rng, rows * kFfn);
    y_.resize(static_cast<size_t>(rows * kFfn));
    logits_.resize(static_cast<size_t>(std::min<int64_t>(rows, 64) * kVocab));
  }

  enum class Part { kQkv, kO, kGateUp, kDown, kHead };
  void run(Part part) {
    if (part == Part::kHead) {
      const int64_t rows = std::min<int64_t>(rows_, 64);
      linear(backend_, model_.head, args(kHidden, kVocab, rows, logits_.data()));
      return;
    }
    for (const Model::Layer& layer : model_.layers) {
      switch (part) {
        case Part::kQkv:
          linear(backend_, layer.qkv, args(kHidden, kQkv, rows_, y_.data()));
          break;
        case Part::kO:
          linear(backend_, layer.o, args(kHidden, kHidden, rows_, y_.data()));
          break;
        case Part::kGateUp:
          linear_silu_mul(backend_, layer.gate_up, args(kHidden, kFfn, rows_, y_.data()));
          break;
        default:
          linear(backend_, layer.down, args(kFfn, kHidden, rows_, y_.data()));
      }
    }
  }
  void run_layers() {
    for (Part part : {Part::kQkv, Part::kO, Part::kGateUp, Part::kDown}) run(part);
  }

 private:
  LinearArgs args(int64_t in, int64_t out, int64_t rows, float* y) {
    return {.x = x_.data(), .x_stride = in, .y = y, .y_stride = out, .rows = rows};
  }
  CpuBackend& backend_;
  const Model& model_;
  const int64_t rows_;
  std::vector<float> x_, y_, logits_;
};

void bench_linear(CpuBackend& backend, const Options& options, double read_rate, double peak,
                  Report& report) {
  const Model model = make_model(backend, options);
  const double head_bytes = static_cast<double>(model.head.size_bytes());
  struct Named {
    const char* name;
    Gemms::Part part;
    double weights;
  };
  const Named parts[] = {{"qkv 2048x3072", Gemms::Part::kQkv, kHidden * kQkv},
                         {"o 2048x2048", Gemms::Part::kO, kHidden * kHidden},
                         {"gate_up 2048x16384", Gemms::Part::kGateUp, 2.0 * kHidden * kFfn},
                         {"down 8192x2048", Gemms::Part::kDown, kFfn * kHidden},
                         {"head 2048x128256", Gemms::Part::kHead, kHidden * kVocab}};
  double weight_size = options.float32 ? 4 : 2;
  if (model.head.quantized()) weight_size = head_bytes / (double{kHidden} * kVocab);
  for (const int64_t rows : options.rows) {
    Gemms gemms(backend, model, rows);
    for (const Named& part : parts) {
      const bool head = part.part == Gemms::Part::kHead;
      if (head && rows > 64) continue;
      const int times = head ? 1 : options.layers;
      const Timing t = time_of(options, [&] { gemms.run(part.part); });
      const double seconds = t.median / times;
      const double flops = 2.0 * static_cast<double>(rows) * part.weights;
      report.add({fmt::format("linear {} rows {}", part.name, rows),
                  {{"us", seconds * 1e6},
                   {"best_us", t.best / times * 1e6},
                   {"GB/s", part.weights * weight_size / seconds / 1e9},
                   {"%read", 100 * part.weights * weight_size / seconds / read_rate},
                   {"GFLOP/s", flops / seconds / 1e9},
                   {"%peak", 100 * flops / seconds / peak}}});
    }
    const Timing t = time_of(options, [&] {
      gemms.run_layers();
      if (rows <= 64) gemms.run(Gemms::Part::kHead);
    });
    const double bytes = model.bytes() - (rows > 64 ? head_bytes : 0);
    const double flops = 2.0 * static_cast<double>(rows) * bytes / weight_size;
    report.add({fmt::format("all GEMMs rows {}", rows),
                {{"ms", t.median * 1e3},
                 {"best_ms", t.best * 1e3},
                 {"tok/s", static_cast<double>(rows) / t.median},
                 {"%read", 100 * bytes / t.median / read_rate},
                 {"%peak", 100 * flops / t.median / peak}}});
  }
}

// Attention of one layer for entries of equal numbers, over a cache of random bfloat16.
void bench_attention(CpuBackend& backend, const Options& options, double read_rate, double peak,
                     Report& report) {
  struct Case {
    int32_t entries, prefix, queries;
  };
  const Case cases[] = {{1, 0, 512},  {1, 0, 2048},  {1, 3584, 512}, {1, 511, 1},
                        {1, 4095, 1}, {1, 32767, 1}, {16, 2047, 1}};
  for (const Case& c : cases) {
    const int32_t context = c.prefix + c.queries, pages = context * c.entries;
    const size_t plane = static_cast<size_t>(pages) * kKvHeads * kHeadDim;
    Rng rng(3);
    auto planes = Buffer::allocate(2 * plane * sizeof(BFloat16));  // huge pages, as a pool has
    ESP_CHECK(planes.has_value(), "{}", planes.error().message());
    BFloat16* const k = planes->as<BFloat16>();
    BFloat16* const v = k + plane;
    for (size_t i = 0; i < plane; ++i) {
      k[i] = to_bfloat16(static_cast<float>(rng.uniform() - 0.5));
      v[i] = to_bfloat16(static_cast<float>(rng.uniform() - 0.5));
    }
    KvView kv;
    kv.layers = {
        {.k = k, .v = v, .num_pages = pages, .num_kv_heads = kKvHeads, .head_dim = kHeadDim}};
    kv.layers[0].set_dense_strides(kv.page_size);
    std::vector<PageId> tables(static_cast<size_t>(pages));
    std::iota(tables.begin(), tables.end(), 0);
    for (size_t i = tables.size(); i > 1; --i) std::swap(tables[i - 1], tables[rng.below(i)]);
    std::vector<BatchEntry> entries(static_cast<size_t>(c.entries));
    for (int32_t i = 0; i < c.entries; ++i) {
      BatchEntry& entry = entries[static_cast<size_t>(i)];
      entry.num_query_tokens = c.queries;
      entry.prefix_len = c.prefix;
      entry.query_begin = i * c.queries;
      entry.page_begin = i * context;
      entry.num_pages = context;
    }
    const int64_t width = kHeads * kHeadDim;
    const std::vector<float> q = normals(rng, static_cast<int64_t>(c.entries) * c.queries * width);
    std::vector<float> out(q.size());
    AttentionArgs args = {.q = q.data(),
                          .q_stride = width,
                          .out = out.data(),
                          .out_stride = width,
                          .heads = kHeads,
                          .entries = entries,
                          .page_tables = tables,
                          .kv = &kv,
                          .layer = 0,
                          .scale = 0.125f};
    const Timing t = time_of(options, [&] { attention(backend, args); });
    const double pairs = (c.prefix + (c.queries + 1) / 2.0) * c.queries * c.entries;
    const double flops = 4.0 * pairs * width;
    const double bytes = 2.0 * 2 * static_cast<double>(plane);
    report.add(
        {fmt::format("attention entries {} prefix {} new {}", c.entries, c.prefix, c.queries),
         {{"us", t.median * 1e6},
          {"best_us", t.best * 1e6},
          {"GB/s", bytes / t.median / 1e9},
          {"%read", 100 * bytes / t.median / read_rate},
          {"GFLOP/s", flops / t.median / 1e9},
          {"%f32peak", 100 * flops / t.median / peak}}});
  }
}

// The experts of one layer of a 30 B mixture with 3 B active (2048 wide, 128 experts of 768, 8 a
// token), each token's drawn at random: all as one grouped GEMM and then another, beside one expert
// after the other.
void bench_experts(CpuBackend& backend, const Options& options, double read_rate, Report& report) {
  constexpr int64_t kExpertFfn = 768, kExperts = 128, kTopK = 8;
  Rng rng(5);
  const Source source(rng, options, kExpertFfn * kHidden);
  std::vector<PackedMatrix> gate_up, down;
  for (int64_t i = 0; i < kExperts; ++i) {
    gate_up.push_back(source.pack(backend, kHidden, 2 * kExpertFfn, true));
    down.push_back(source.pack(backend, kExpertFfn, kHidden, false));
  }
  const double expert_bytes = static_cast<double>(gate_up[0].size_bytes() + down[0].size_bytes());
  for (const int64_t tokens : {1, 4, 16, 64, 512}) {
    std::vector<int64_t> rows_of(kExperts);
    for (int64_t i = 0; i < tokens * kTopK; ++i) ++rows_of[rng.below(kExperts)];
    const int64_t rows = tokens * kTopK;
    const std::vector<float> x = normals(rng, rows * kHidden);
    std::vector<float> inner(static_cast<size_t>(rows * kExpertFfn));
    std::vector<float> y(static_cast<size_t>(rows * kHidden));
    const LinearArgs in = {.x = x.data(),
                           .x_stride = kHidden,
                           .y = inner.data(),
                           .y_stride = kExpertFfn,
                           .rows = rows};
    const LinearArgs out = {.x = inner.data(),
                            .x_stride = kExpertFfn,
                            .y = y.data(),
                            .y_stride = kHidden,
                            .rows = rows};
    std::vector<LinearGroup> into, back;
    for (size_t i = 0; i < kExperts; ++i) {
      if (rows_of[i] == 0) continue;
      into.push_back({.w = &gate_up[i], .rows = rows_of[i]});
      back.push_back({.w = &down[i], .rows = rows_of[i]});
    }
    const Timing together = time_of(options, [&] {
      linear_silu_mul_grouped(backend, into, in);
      linear_grouped(backend, back, out);
    });
    const Timing apart = time_of(options, [&] {
      LinearArgs a = in, b = out;
      for (size_t i = 0; i < into.size(); ++i) {
        a.rows = b.rows = into[i].rows;
        linear_silu_mul(backend, *into[i].w, a);
        linear(backend, *back[i].w, b);
        a.x += a.rows * kHidden, a.y += a.rows * kExpertFfn;
        b.x += b.rows * kExpertFfn, b.y += b.rows * kHidden;
      }
    });
    const double bytes = expert_bytes * static_cast<double>(into.size());
    report.add({fmt::format("experts tokens {} ({} of 128)", tokens, into.size()),
                {{"us", together.median * 1e6},
                 {"best_us", together.best * 1e6},
                 {"one_by_one_us", apart.median * 1e6},
                 {"GB/s", bytes / together.median / 1e9},
                 {"%read", 100 * bytes / together.median / read_rate}}});
  }
}

void bench_light(CpuBackend& backend, const Options& options, Report& report) {
  const Timing empty = time_of(options, [&] {
    for (int i = 0; i < 1000; ++i) backend.pool().run([](int) {});
  });
  report.add(
      {"empty run of the threads", {{"us", empty.median * 1e3}, {"best_us", empty.best * 1e3}}});
  Rng rng(4);
  const std::vector<float> weight = normals(rng, kHidden);
  for (const int64_t rows : {1, 512}) {
    const std::vector<float> x = normals(rng, rows * kHidden);
    std::vector<float> y(x.size());
    const Timing t = time_of(options, [&] {
      rms_norm(backend, {.x = x.data(),
                         .x_stride = kHidden,
                         .y = y.data(),
                         .y_stride = kHidden,
                         .rows = rows,
                         .dim = kHidden,
                         .weight = weight.data()});
    });
    report.add({fmt::format("rms_norm rows {}", rows),
                {{"us", t.median * 1e6}, {"best_us", t.best * 1e6}}});
  }
}

int run(const Options& options) {
  WorkPool pool(options.threads);
  pool.bind_caller();
  auto made = CpuBackend::create(pool, options.isa);
  if (!made) {
    std::fprintf(stderr, "%s\n", made.error().message().c_str());
    return 2;
  }
  CpuBackend& backend = **made;
  Report report;
  std::printf("instructions %s, threads %d\n", std::string(cpu_isa_name(backend.isa())).c_str(),
              pool.num_threads());
  const double read_rate = measure_read_rate(backend, options.watch, size_t{1} << 30);
  const double bf16_peak = measure_bf16_peak(backend, options.watch),
               f32_peak = measure_f32_peak(backend, options.watch);
  report.add({"read rate", {{"GB/s", read_rate / 1e9}}});
  report.add({"peak", {{"bf16 GFLOP/s", bf16_peak / 1e9}, {"f32 GFLOP/s", f32_peak / 1e9}}});
  if (options.wants("light")) bench_light(backend, options, report);
  if (options.wants("attention")) bench_attention(backend, options, read_rate, f32_peak, report);
  if (options.wants("experts")) bench_experts(backend, options, read_rate, report);
  if (options.wants("gemm") || options.wants("products")) {
    bench_linear(backend, options, read_rate, options.float32 ? f32_peak : bf16_peak, report);
  }
  if (!options.json.empty()) report.write_json(options.json);
  return 0;
}

}  // namespace
}  // namespace espalier::kernels::bench

int main(int argc, char** argv) {
  espalier::kernels::bench::Options options;
  CLI::App app("CPU kernels at the shapes of a 1.24 B Llama, against the machine's ceilings");
  app.add_option("--threads", options.threads, "compute threads (0: one a core)");
  app.add_option("--isa", options.isa, "instruction set (default: the best)");
  app.add_option("--json", options.json, "also write the figures to this file");
  app.add_option("--layers", options.layers, "layers of weights to stream")
      ->check(CLI::Range(1, 64));
  app.add_option("--repeats", options.repeats, "timings of each")->check(CLI::Range(1, 1000));
  app.add_flag("--cpu-time", options.watch.cpu_time,
               "time by the process's processor time; with --threads 1, on a busy machine");
  app.add_flag("--float32", options.float32, "float32 weights");
  std::vector<std::string> formats;
  for (const auto& info : espalier::kBlockFormats) formats.emplace_back(info.name);
  app.add_option("--quantization", options.quantization, "weights in blocks of this format")
      ->check(CLI::IsMember(formats));
  app.add_option("--rows", options.rows, "numbers of rows of the GEMMs")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--part", options.parts, "only these")
      ->check(CLI::IsMember(espalier::kernels::bench::kParts));
  CLI11_PARSE(app, argc, argv);
  return espalier::kernels::bench::run(options);
}
