// The rate at which a decode server's GPU takes pages from staging memory of a prefill server's,
// beside one copy of the same bytes from GPU to GPU; and what staging them costs on the first GPU.
// Another process of this program has the staging memory, on the other GPU (with one GPU: on the
// same). Bytes are compared first.
//
//   staging_bench [--pages 512] [--layers 32] [--kv-heads 8] [--page-size 16]
#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "cache/kv_pool.h"
#include "engine/executor/cuda/cuda_page_copier.h"
#include "engine/executor/cuda/device_planes.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/ipc.h"
#include "tensor/cuda/memory.h"

namespace espalier {
namespace {

constexpr int kRounds = 9;

struct Settings {
  int32_t pages = 512, layers = 32, kv_heads = 8, page_size = 16;
  std::string export_to;  // of the other process: where it writes what the first one needs
};

KvPoolConfig pool_config(const Settings& s) {
  return {.num_layers = s.layers,
          .num_kv_heads = s.kv_heads,
          .head_dim = 128,
          .num_pages = s.pages,
          .page_size = s.page_size};
}

struct Side {
  KvPool pool;
  std::unique_ptr<CudaPageCopier> copier;
  cuda::Stream stream;
};

Result<Side> make_side(const Settings& settings, int32_t device) {
  if (const auto info = cuda::open_device(device); !info) return fail(info.error());
  ESP_ASSIGN_OR_RETURN(KvPool pool, KvPool::create(pool_config(settings), allocate_device_planes));
  ESP_ASSIGN_OR_RETURN(auto copier, CudaPageCopier::create(pool.view(), /*stages_steps=*/true));
  ESP_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create());
  return Side{std::move(pool), std::move(copier), std::move(stream)};
}

// Of one page: bytes that follow from the page and the place.
std::vector<std::byte> page_bytes(PageId page, int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = mix64(static_cast<uint64_t>(page) << 32 | i);
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

template <typename Run>
Result<double> rate_of(int64_t bytes, const Run& run) {
  const SteadyClock clock;
  std::vector<double> rates;
  for (int round = 0; round <= kRounds; ++round) {
    const TimePoint start = clock.now();
    ESP_RETURN_IF_ERROR(run());
    if (round > 0)
      rates.push_back(static_cast<double>(bytes) * 1e-9 / to_seconds(clock.now() - start));
  }
  return median(rates);
}

// --- The process with the staging memory.

Status export_pages(const Settings& settings) {
  ESP_ASSIGN_OR_RETURN(Side side, make_side(settings, cuda::count_devices() > 1 ? 1 : 0));
  const int64_t size = side.copier->page_bytes();
  std::vector<PageId> pages(static_cast<size_t>(settings.pages));
  std::iota(pages.begin(), pages.end(), 0);
  for (const PageId page : pages)
    ESP_RETURN_IF_ERROR(side.copier->write_page(page, page_bytes(page, size)));
  ESP_ASSIGN_OR_RETURN(PageStaging* const staging,
                       side.copier->start_staging(settings.pages * size + (64 << 20)));
  std::unique_ptr<StagedPages> staged;
  ESP_ASSIGN_OR_RETURN(const double rate, rate_of(settings.pages * size, [&]() -> Status {
                         staged.reset();
                         staged = staging->stage(pages);
                         const auto planes = staged->wait(0);
                         return planes ? Status() : planes.error();
                       }));
  std::ofstream out(settings.export_to + ".part", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&rate), sizeof(rate));
  out.write(reinterpret_cast<const char*>(staging->handle().nonce.data()), 16);
  out.write(staging->handle().bytes.data(), 64);
  for (const StagedPart& part : staged->parts())
    out.write(reinterpret_cast<const char*>(&part), sizeof(part));
  out.close();
  std::filesystem::rename(settings.export_to + ".part", settings.export_to);
  while (std::getchar() != EOF) {
  }
  return {};
}

// --- The process that takes the pages.

struct Exported {
  double rate = 0;
  StagingHandle handle{.kind = "cuda-ipc", .bytes = std::string(64, 0)};
  std::vector<StagedPart> parts;
};

Result<Exported> read_exported(const std::string& file) {
  for (int i = 0; i < 6000 && !std::filesystem::exists(file); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  Exported exported;
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(&exported.rate), sizeof(exported.rate));
  in.read(reinterpret_cast<char*>(exported.handle.nonce.data()), 16);
  in.read(exported.handle.bytes.data(), 64);
  for (StagedPart part; in.read(reinterpret_cast<char*>(&part), sizeof(part));)
    exported.parts.push_back(part);
  std::filesystem::remove(file);
  if (exported.parts.empty())
    return fail(error(StatusCode::kUnavailable, "the other process gave no staging memory"));
  return exported;
}

Status compare(Side& side, std::span<const PageId> pages) {
  std::vector<std::byte> bytes(static_cast<size_t>(side.copier->page_bytes()));
  for (size_t i = 0; i < pages.size(); i += 37) {
    ESP_RETURN_IF_ERROR(side.copier->read_page(pages[i], bytes));
    if (bytes != page_bytes(static_cast<PageId>(i), std::ssize(bytes)))
      return error(StatusCode::kDataLoss, "page {} has other bytes than were staged", i);
  }
  return {};
}

// One copy of the bytes from the other GPU to this one.
Result<double> ceiling(const Side& side, int64_t bytes) {
  const bool two = cuda::count_devices() > 1;
  if (const auto info = cuda::open_device(two ? 1 : 0); !info) return fail(info.error());
  ESP_ASSIGN_OR_RETURN(const auto from, cuda::DeviceBuffer::allocate(bytes, "a copy"));
  ESP_RETURN_IF_ERROR(cuda::use_device(0));
  ESP_ASSIGN_OR_RETURN(const auto to, cuda::DeviceBuffer::allocate(bytes, "a copy"));
  if (two) ESP_RETURN_IF_ERROR(cuda::allow_peer_access(1));
  return rate_of(bytes, [&]() -> Status {
    ESP_RETURN_IF_ERROR(cuda::copy_rows_on_devices(
        {.to = to.data(), .from = from.data(), .row_bytes = bytes, .num_rows = 1}, side.stream));
    return side.stream.synchronize();
  });
}

Status take_pages(const Settings& settings, const Exported& exported) {
  ESP_ASSIGN_OR_RETURN(Side side, make_side(settings, 0));
  const int64_t bytes = settings.pages * side.copier->page_bytes();
  const int32_t planes = 2 * settings.layers;
  ESP_ASSIGN_OR_RETURN(const auto mapped, side.copier->map_staging(exported.handle));
  std::vector<PageId> neighbours(static_cast<size_t>(settings.pages));
  std::iota(neighbours.begin(), neighbours.end(), 0);
  std::vector<PageId> scattered = neighbours;
  Rng rng(1);
  for (size_t i = scattered.size(); i-- > 1;) std::swap(scattered[i], scattered[rng.below(i + 1)]);
  ESP_ASSIGN_OR_RETURN(const double most, ceiling(side, bytes));
  fmt::print("{} pages of {} bytes, {} GPUs\n", settings.pages, side.copier->page_bytes(),
             cuda::count_devices());
  fmt::print("{:<44} {:8.1f} GB/s\n", "one copy from GPU to GPU (ceiling)", most);
  fmt::print("{:<44} {:8.1f} GB/s\n", "staged on its own GPU", exported.rate);
  struct Case {
    const char* name;
    const std::vector<PageId>& pages;
    int32_t num_ranges;
  };
  for (const Case& c : {Case{"taken into neighbouring pages", neighbours, 1},
                        Case{"taken into scattered pages", scattered, 1},
                        Case{"taken into neighbouring pages, in 8 parts", neighbours, 8},
                        Case{"taken into scattered pages, in 8 parts", scattered, 8}}) {
    const auto rate = rate_of(bytes, [&]() -> Status {
      for (int32_t i = 0; i < c.num_ranges; ++i)
        ESP_RETURN_IF_ERROR(mapped->take(
            exported.parts, {planes * i / c.num_ranges, planes * (i + 1) / c.num_ranges}, c.pages));
      return {};
    });
    if (!rate) return rate.error();
    ESP_RETURN_IF_ERROR(compare(side, c.pages));
    fmt::print("{:<44} {:8.1f} GB/s  {:5.1f} % of the ceiling\n", c.name, *rate,
               *rate / most * 100);
  }
  return {};
}

Status run(const Settings& settings) {
  if (!settings.export_to.empty()) return export_pages(settings);
  const std::string file =
      (std::filesystem::temp_directory_path() / fmt::format("espalier-staged-{}", getpid()))
          .string();
  const std::string command =
      fmt::format("{} --pages {} --layers {} --kv-heads {} --page-size {} --export-to {}",
                  std::filesystem::read_symlink("/proc/self/exe").string(), settings.pages,
                  settings.layers, settings.kv_heads, settings.page_size, file);
  FILE* const other = popen(command.c_str(), "w");
  if (other == nullptr) return error(StatusCode::kUnavailable, "no other process can be started");
  auto exported = read_exported(file);
  const Status status = exported ? take_pages(settings, *exported) : exported.error();
  pclose(other);
  return status;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::Settings settings;
  CLI::App app{"The rate of transfers from GPU to GPU through staging memory"};
  app.add_option("--pages", settings.pages)->check(CLI::Range(1, 65536));
  app.add_option("--layers", settings.layers)->check(CLI::Range(8, 1024));
  app.add_option("--kv-heads", settings.kv_heads)->check(CLI::Range(1, 1024));
  app.add_option("--page-size", settings.page_size)->check(CLI::Range(1, 4096));
  app.add_option("--export-to", settings.export_to, "of the other process");
  CLI11_PARSE(app, argc, argv);
  const espalier::Status status = espalier::run(settings);
  if (status.ok()) return 0;
  fmt::print(stderr, "staging_bench: {}\n", status.to_string());
  return 1;
}
