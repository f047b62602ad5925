// espalier doctor: what is wrong with this computer for serving, and what to do.
#include "apps/doctor.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/config.h"
#include "engine/startup/system_info.h"
#include "hub/inventory.h"
#include "kernels/cpu/isa.h"
#include "net/bound_address.h"
#include "server/json_writer.h"

namespace espalier::apps {
namespace {

namespace fs = std::filesystem;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB);
}

std::string content_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

Finding check_processor() {
  std::vector<std::string_view> names;
  const std::vector<kernels::CpuIsa> isas = kernels::supported_cpu_isas();
  for (const kernels::CpuIsa isa : isas) names.push_back(kernels::cpu_isa_name(isa));
  Finding out{.what = "Processor"};
  const auto chosen = kernels::resolve_cpu_isa({});
  if (!chosen)
    return {"Processor", Health::kProblem, chosen.error().message(), "unset ESPALIER_CPU_ISA"};
  out.found = fmt::format("{} processors; kernels for {} (of {})", read_system_info().num_cpus,
                          kernels::cpu_isa_name(*chosen), fmt::join(names, ", "));
  if (isas.size() == 1) {
    out.health = Health::kNote;
    out.advice =
        "the kernels are portable C++ here, which is slow: use a processor with AVX2 or "
        "later, or a GPU";
  }
  return out;
}

Finding check_huge_pages() {
  const std::string state = content_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (state.empty())
    return {"Huge pages", Health::kNote, "this system has no transparent huge pages", ""};
  if (state.find("[never]") == std::string::npos)
    return {"Huge pages", Health::kGood, "transparent huge pages: " + state, ""};
  return {"Huge pages", Health::kNote, "transparent huge pages are off",
          "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (weights and the "
          "radix tree are read faster)"};
}

std::optional<int> nccl_version() {
  void* library = nullptr;
  for (const char* name : {"libnccl.so.2", "libnccl.so"})
    if (library == nullptr) library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  int version = 0;
  using GetVersion = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(library, "ncclGetVersion"));
  const bool known = get != nullptr && get(&version) == 0;
  ::dlclose(library);
  return known ? std::optional(version) : std::nullopt;
}

Finding check_port(const DoctorOptions& options) {
  const std::string address = fmt::format("{}:{}", options.host, options.port);
  const auto bound = net::BoundAddress::bind(options.host, options.port);
  if (bound) return {"Port", Health::kGood, address + " is free", ""};
  return {"Port", Health::kProblem, bound.error().message(),
          "end the program that listens there, or choose another --host or --port"};
}

Finding check_model(const DoctorOptions& options) {
  std::error_code problem;
  const bool is_path = options.model_path.empty() || fs::exists(options.model_path, problem);
  if (!is_path && hub::HubReference::parse(options.model_path.string())) {
    const auto cached = hub::list_snapshots(hub::HubOptions::from_environment().cache);
    const bool there = std::ranges::find(cached, options.model_path.string(),
                                         &hub::CachedSnapshot::repo) != cached.end();
    return there ? Finding{"Model", Health::kGood, options.model_path.string() + " is in the cache",
                           ""}
                 : Finding{"Model", Health::kNote,
                           options.model_path.string() + " is not in the cache",
                           "it is fetched at the first start"};
  }
  const auto found = resolve_model_path(options.model_path, {});
  if (found) return {"Model", Health::kGood, found->string(), ""};
  return {"Model", Health::kProblem, found.error().message(),
          "name one: --model-path FOLDER, FILE.gguf or org/name"};
}

Finding check_cache_folder() {
  const fs::path cache = hub::HubOptions::from_environment().cache;
  fs::path there = cache;
  std::error_code problem;
  while (!fs::exists(there, problem) && there.has_relative_path()) there = there.parent_path();
  struct statvfs space {};
  if (::access(there.c_str(), W_OK) != 0 || ::statvfs(there.c_str(), &space) != 0)
    return {"Hub's cache", Health::kNote, there.string() + " cannot be written",
            "models of a hub cannot be fetched: set HF_HUB_CACHE or --download-dir"};
  const auto free_bytes =
      static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  Finding out{"Hub's cache", Health::kGood,
              fmt::format("{}: {} free", cache.string(), gib(free_bytes)), ""};
  if (free_bytes < 10 * static_cast<int64_t>(kGiB)) {
    out.health = Health::kNote;
    out.advice = "most models take more: free some, or name another disk by HF_HUB_CACHE";
  }
  return out;
}

Finding check_hub(bool offline) {
  const hub::HubOptions options = hub::HubOptions::from_environment();
  if (offline || options.offline)
    return {"Hub", Health::kGood, "not asked: offline, so models come from the cache alone", ""};
  const Status status = hub::probe(options);
  if (status.ok()) return {"Hub", Health::kGood, options.endpoint + " answers", ""};
  return {"Hub", Health::kNote,
          fmt::format("{} does not answer: {}", options.endpoint, status.message()),
          "models that are on this computer are served all the same; HTTPS_PROXY names a proxy, "
          "HF_ENDPOINT another hub, and HF_HUB_OFFLINE=1 asks none"};
}

int64_t total_memory() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
}

std::string_view word(Health health) {
  constexpr std::string_view kWords[] = {"good", "note", "problem"};
  return kWords[static_cast<size_t>(health)];
}

void print_text(const std::vector<Finding>& findings) {
  for (const Finding& each : findings) {
    fmt::print("{:<8} {:<12} {}\n", word(each.health), each.what, each.found);
    if (!each.advice.empty()) fmt::print("{:<22}-> {}\n", "", each.advice);
  }
}

void print_json(const std::vector<Finding>& findings) {
  std::string out;
  server::JsonWriter w(out);
  w.begin_array();
  for (const Finding& each : findings) {
    w.begin_object().member("what", each.what).member("health", word(each.health));
    w.member("found", each.found).key("advice");
    each.advice.empty() ? static_cast<void>(w.null()) : static_cast<void>(w.value(each.advice));
    w.end_object();
  }
  w.end_array();
  fmt::print("{}\n", out);
}

}  // namespace

Finding check_gpu(int32_t num_devices, const Result<cuda::DeviceInfo>& opened, int64_t free_bytes) {
  if (!opened)
    return {"GPU", num_devices > 0 ? Health::kProblem : Health::kNote, opened.error().message(),
            num_devices > 0 ? "until then --device cpu serves" : "the processor serves"};
  Finding out{"GPU", Health::kGood,
              fmt::format("{} (compute capability {}.{}), {} of {} free{}", opened->name,
                          opened->compute_major, opened->compute_minor, gib(free_bytes),
                          gib(opened->memory_bytes),
                          num_devices > 1 ? fmt::format("; {} GPUs in all", num_devices) : ""),
              ""};
  if (free_bytes < opened->memory_bytes / 2) {
    out.health = Health::kNote;
    out.advice =
        "another program has most of its memory (nvidia-smi lists them): end it, or name "
        "another GPU by --base-gpu-id";
  }
  return out;
}

Finding check_driver(const Result<std::string>& version, int32_t num_devices) {
  if (version) return {"GPU driver", Health::kGood, "version " + *version, ""};
  if (num_devices == 0)
    return {"GPU driver", Health::kGood, "none, and none is needed without a GPU", ""};
  return {"GPU driver", Health::kNote, version.error().message(),
          "models run, but /metrics and espalier top have no figures of GPUs: give the container "
          "the driver's utilities (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"};
}

Finding check_other_gpu(const cuda::GpuFigures& gpu) {
  constexpr double kHotCelsius = 85;
  Finding out{
      fmt::format("GPU {}", gpu.index), Health::kGood,
      fmt::format("{}, {} of {} free", gpu.name,
                  gib(gpu.memory_total_bytes - gpu.memory_used_bytes), gib(gpu.memory_total_bytes)),
      ""};
  if (gpu.temperature_celsius) out.found += fmt::format(", {:.0f} °C", *gpu.temperature_celsius);
  if (gpu.memory_used_bytes > gpu.memory_total_bytes / 2) {
    out.health = Health::kNote;
    out.advice =
        "another program has most of its memory (nvidia-smi lists them): end it before a model "
        "that needs this GPU";
  } else if (gpu.temperature_celsius.value_or(0) >= kHotCelsius) {
    out.health = Health::kNote;
    out.advice = "it slows down when it is so hot: see to its cooling";
  }
  return out;
}

Finding check_memory(int64_t available_bytes, int64_t total_bytes) {
  Finding out{"Memory", Health::kGood,
              fmt::format("{} available of {}", gib(available_bytes), gib(total_bytes)), ""};
  if (available_bytes >= static_cast<int64_t>(2 * kGiB)) return out;
  out.health = Health::kNote;
  out.advice = "only small models fit: end other programs, or raise the limit of this container";
  return out;
}

Finding check_open_files(uint64_t soft, uint64_t hard) {
  constexpr uint64_t kWanted = 4096 + 256;  // --max-connections, and some
  Finding out{"Open files", Health::kGood, fmt::format("at most {} (up to {})", soft, hard), ""};
  if (hard >= kWanted) return out;  // the server raises the soft limit itself
  out.health = Health::kNote;
  out.advice = fmt::format(
      "fewer connections than the {} of --max-connections can be open: raise "
      "the limit (ulimit -Hn, LimitNOFILE)",
      kWanted - 256);
  return out;
}

Finding check_nccl(std::optional<int> version, int32_t num_devices) {
  if (version)
    return {"NCCL", Health::kGood,
            fmt::format("version {}.{}.{}", *version / 10000, *version / 100 % 100, *version % 100),
            ""};
  if (num_devices < 2)
    return {"NCCL", Health::kGood, "not installed, and not needed without several GPUs", ""};
  return {
      "NCCL", Health::kNote, "libnccl.so.2 is not installed",
      "only GPUs without peer access, and --disable-custom-all-reduce, need it: install libnccl2"};
}

std::vector<Finding> examine(const DoctorOptions& options) {
  const int32_t num_devices = cuda::count_devices();
  const auto opened = cuda::open_device(0);
  const auto gpu_memory =
      opened ? cuda::read_device_memory() : Result<cuda::DeviceMemory>(cuda::DeviceMemory{});
  const auto nvml = cuda::Nvml::open();
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  std::vector<Finding> out = {
      check_processor(),
      check_memory(read_system_info().available_bytes, total_memory()),
      check_huge_pages(),
      check_open_files(files.rlim_cur, files.rlim_max),
      check_driver(nvml ? nvml->driver_version() : Result<std::string>(fail(nvml.error())),
                   num_devices),
      check_gpu(num_devices, opened, gpu_memory ? gpu_memory->free_bytes : 0)};
  if (nvml)
    for (const cuda::GpuFigures& gpu : nvml->read())
      if (num_devices > 1 && gpu.index > 0) out.push_back(check_other_gpu(gpu));
  for (const Finding& each :
       {check_nccl(nccl_version(), num_devices), check_port(options), check_model(options),
        check_cache_folder(), check_hub(options.offline)})
    out.push_back(each);
  return out;
}

int run_doctor(const std::vector<std::string>& args) {
  DoctorOptions options;
  bool json = false;
  SettingTable table;
  table.group("What is to be served");
  table.path("model-path", options.model_path, "the model").default_text = "the model that ships";
  table.text("host", options.host, "ADDRESS", "the address that a server would listen on");
  table.integer("port", options.port, 0, 65535, "the port");
  table.toggle("offline", options.offline, "do not ask whether the hub answers");
  table.group("Output");
  table.toggle("json", json, "print the findings as JSON");
  CommandLine command{"espalier doctor",
                      "Says what is wrong with this computer for serving, and what to do. The exit "
                      "status is 1 where there is a problem.",
                      "Example:\n  espalier doctor --port 8000 --offline",
                      "",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  const std::vector<Finding> findings = examine(options);
  json ? print_json(findings) : print_text(findings);
  const bool problem = std::ranges::any_of(
      findings, [](const Finding& each) { return each.health == Health::kProblem; });
  return problem ? kExitFailure : kExitOk;
}

}  // namespace espalier::apps
