#include "engine/sampling/logit_library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "espalier/logit_processor.h"

namespace espalier {
namespace {

constexpr int32_t kProcessorsMax = 1024;  // a list that never ends is refused
constexpr size_t kMessageSize = 512;
using Message = std::array<char, kMessageSize>;

std::string text_of(Message& message) {
  message.back() = '\0';
  return message[0] == '\0' ? "it gives no reason" : message.data();
}

class ProcessorHook final : public LogitHook {
 public:
  ProcessorHook(std::shared_ptr<const LogitLibrary> library,
                const espalier_logit_processor& processor, void* state)
      : library_(std::move(library)), processor_(processor), state_(state) {}
  ProcessorHook(const ProcessorHook&) = delete;
  ProcessorHook& operator=(const ProcessorHook&) = delete;
  ~ProcessorHook() override { processor_.destroy(state_); }

  std::string apply(std::span<const TokenId> tokens, int32_t num_prompt,
                    std::span<float> logits) override {
    const espalier_logits view{.tokens = tokens.data(),
                               .num_tokens = static_cast<int32_t>(tokens.size()),
                               .num_prompt = num_prompt,
                               .vocab_size = static_cast<int32_t>(logits.size()),
                               .logits = logits.data()};
    Message message{};
    if (processor_.apply(state_, &view, message.data(), message.size()) == 0) return {};
    return text_of(message);
  }

 private:
  const std::shared_ptr<const LogitLibrary> library_;  // shared: requests may outlive the engine
  const espalier_logit_processor& processor_;
  void* const state_;
};

}  // namespace

Result<std::shared_ptr<const LogitLibrary>> LogitLibrary::open(const std::filesystem::path& file) {
  // A bare name would be searched for in the system's folders.
  void* const handle = ::dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return fail(invalid_argument("logit_processor_library {} cannot be loaded: {}", file.string(),
                                 ::dlerror()));
  std::shared_ptr<LogitLibrary> library(new LogitLibrary(handle));
  if (Status status = library->read_processors(); !status.ok())
    return fail(
        invalid_argument("logit_processor_library {}: {}", file.string(), status.message()));
  return std::shared_ptr<const LogitLibrary>(std::move(library));
}

LogitLibrary::~LogitLibrary() { ::dlclose(library_); }

Status LogitLibrary::read_processors() {
  using List = decltype(&espalier_logit_processors);
  const auto list = reinterpret_cast<List>(::dlsym(library_, "espalier_logit_processors"));
  if (list == nullptr)
    return invalid_argument(
        "it exports no function espalier_logit_processors (espalier/logit_processor.h)");
  for (int32_t i = 0; i < kProcessorsMax; ++i) {
    const espalier_logit_processor* const processor = list(i);
    if (processor == nullptr) break;
    if (processor->abi != ESPALIER_LOGIT_PROCESSOR_ABI)
      return invalid_argument(
          "processor {} is of ABI {}, and this server takes ABI {}: compile it with this version's "
          "espalier/logit_processor.h",
          i, processor->abi, ESPALIER_LOGIT_PROCESSOR_ABI);
    if (processor->name == nullptr || *processor->name == '\0' || processor->create == nullptr ||
        processor->apply == nullptr || processor->destroy == nullptr)
      return invalid_argument("processor {} lacks its name, create, apply or destroy", i);
    processors_.push_back(processor);
  }
  if (processors_.empty()) return invalid_argument("it has no processors");
  return {};
}

std::vector<std::string> LogitLibrary::names() const {
  std::vector<std::string> names;
  for (const espalier_logit_processor* each : processors_) names.emplace_back(each->name);
  return names;
}

Result<std::shared_ptr<LogitHook>> LogitLibrary::make_hook(const std::string& name,
                                                           const std::string& params,
                                                           int32_t vocab_size) const {
  const auto found = std::ranges::find_if(
      processors_, [&](const espalier_logit_processor* each) { return name == each->name; });
  if (found == processors_.end())
    return fail(invalid_argument("logit_processor is '{}', but the server has {}", name,
                                 fmt::join(names(), ", ")));
  Message message{};
  void* const state = (*found)->create(params.c_str(), vocab_size, message.data(), message.size());
  if (state == nullptr)
    return fail(invalid_argument("logit_processor {} refuses logit_processor_params: {}", name,
                                 text_of(message)));
  return std::make_shared<ProcessorHook>(shared_from_this(), **found, state);
}

}  // namespace espalier
