#include "server/context.h"

#include <new>
#include <random>

#include "base/rng.h"
#include "base/thread.h"
#include "engine/requests/exact_search.h"
#include "engine/weights/weight_control.h"
#include "server/batches/batches.h"
#include "server/dialects/background_responses.h"
#include "server/dialects/response_store.h"
#include "server/errors.h"
#include "server/observations.h"
#include "server/served_models/model_registry.h"
#include "tenants/tenants.h"

namespace espalier::server {

WorkerPool::WorkerPool(int num_threads, std::string_view name, size_t tasks_max)
    : tasks_(tasks_max) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this, thread_name = fmt::format("{}-{}", name, i)] {
      set_thread_name(thread_name);
      give_way();
      while (auto task = tasks_.pop()) (*task)();
    });
  }
}

void WorkerPool::stop() {
  tasks_.close();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

ServerParts::ServerParts() = default;
ServerParts::~ServerParts() = default;

Context::Context(ServerConfig c, Engine& e, std::shared_ptr<ServerParts> p)
    : config(std::move(c)),
      engine(e),
      parts(std::move(p)),
      http(parts->http),
      stopping(parts->stopping),
      accounts(parts->accounts),
      tenants(parts->tenants),
      responses(parts->responses),
      background(parts->background),
      batches(parts->batches) {
  if (WeightControl* const weights = engine.weights())
    weights->name_first(config.answers.weight_version);
}
Context::~Context() = default;

std::string Context::weight_version(int32_t epoch) const {
  const WeightControl* const weights = engine.weights();
  return weights != nullptr ? weights->version_of(epoch) : config.answers.weight_version;
}

std::string Context::weight_version() const {
  const WeightControl* const weights = engine.weights();
  return weights != nullptr ? weights->version() : config.answers.weight_version;
}

std::string Context::make_rid() {
  std::random_device device;  // unpredictable, so that no client can abort another client's request
  return fmt::format("{:08x}{:08x}{:016x}", device(), device(), mix64(next_rid_++));
}

std::shared_ptr<const Speller> Context::speller() {
  std::call_once(speller_made_,
                 [&] { speller_ = std::make_shared<const Speller>(engine.tokenizer()->vocab()); });
  return speller_;
}

std::string Context::token_text(TokenId id) const {
  const Tokenizer* tokenizer = engine.tokenizer();
  if (tokenizer == nullptr) return {};
  DecodeOptions options;
  options.skip_special_tokens = false;
  return tokenizer->decode({id}, options);
}

std::string_view Context::token_bytes(TokenId id) const {
  const Tokenizer* tokenizer = engine.tokenizer();
  if (tokenizer == nullptr) return {};
  const auto& all = tokenizer->vocab().token_bytes;
  return id >= 0 && static_cast<size_t>(id) < all.size() ? all[static_cast<size_t>(id)] : "";
}

void Context::run_sized(size_t num_bytes, const net::ResponsePtr& response,
                        std::function<void()> task) {
  if (num_bytes <= kInlineBytes) return task();
  if (!threads->workers.run([task = std::move(task), response] {
        try {
          task();
        } catch (const std::bad_alloc&) {
          response->send(http_error(503, "there is no memory for this request: try again later"));
        } catch (const std::exception&) {  // a third party's
          response->send(http_error(500, "internal error"));
        }
      })) {
    response->send(http_error(503, "too many large requests at once"));
  }
}

}  // namespace espalier::server
