// A program with a language model inside: loads a model folder, asks for one answer and waits for
// it, then streams three samples of another as they are written.
//
//   example_engine MODEL_FOLDER [PROMPT]
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>

#include "engine/engine.h"

namespace {

using espalier::Engine;
using espalier::Result;
using espalier::Status;
using espalier::TokenEvent;

Status ask(Engine& engine, const std::string& prompt) {
  ESP_ASSIGN_OR_RETURN(
      const auto answer,
      engine.generate({.text = prompt, .sampling = {.max_new_tokens = 32, .temperature = 0.0f}}));
  std::printf("%s%s\n\n", prompt.c_str(), answer.text.c_str());
  return {};
}

// Events come on the engine's thread, which must not be kept waiting: this sink prints a line a
// piece and counts ends, nothing more.
Status stream(Engine& engine, const std::string& prompt) {
  constexpr int kSamples = 3;
  std::mutex mutex;
  std::condition_variable ended;
  int num_ended = 0;
  ESP_ASSIGN_OR_RETURN(const std::string rid, engine.submit({.text = prompt,
                                                             .sampling = {.max_new_tokens = 16,
                                                                          .temperature = 0.8f,
                                                                          .n = kSamples,
                                                                          .sampling_seed = 1}},
                                                            [&](TokenEvent&& event) {
                                                              std::printf("[%d] %s\n", event.index,
                                                                          event.text.c_str());
                                                              if (!event.finish) return;
                                                              std::lock_guard lock(mutex);
                                                              if (++num_ended == kSamples)
                                                                ended.notify_one();
                                                            }));
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return num_ended == kSamples; });
  return {};
}

Status run(const char* model_path, const std::string& prompt) {
  ESP_ASSIGN_OR_RETURN(const auto engine, Engine::create({.model = {.model_path = model_path}}));
  ESP_RETURN_IF_ERROR(ask(*engine, prompt));
  ESP_RETURN_IF_ERROR(stream(*engine, prompt));
  const espalier::EngineStats stats = engine->stats();
  std::printf("\n%lld tokens in %lld steps, %.0f %% of the prompts from the cache\n",
              static_cast<long long>(stats.tokens.generated),
              static_cast<long long>(stats.steps.num_steps), 100 * stats.cache_hit_rate());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER [PROMPT]\n", argv[0]);
    return 2;
  }
  const Status status = run(argv[1], argc > 2 ? argv[2] : "Once upon a time");
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
