// What draft tokens gain and cost: an engine in this process answers mixes of requests without
// draft tokens and with each drafter, in turns. Each run begins with a new engine, so nothing is
// cached and no policy has learnt. First the answers are compared with those without draft tokens,
// token for token; then processor time and wall time are reported as the median of their ratios to
// the run without draft tokens of the same round, with the least and the largest. Other work on the
// computer changes wall time, and processor time far less.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"

namespace espalier {
namespace {

struct Options {
  std::string model = "share/default_model";
  std::string draft_model;  // of STANDALONE
  int rounds = 5, threads = 2, draft_tokens = 8;
  std::vector<std::string> only;
  std::vector<std::string> algorithms = {"NGRAM", "RADIX", "COMBINED", "EAGLE3"};
};

struct Ask {
  std::string text;
  float temperature = 0;
  int32_t max_new_tokens = 0;
  uint64_t seed = 1;
  bool to_length = false;
};

// What a mix has done: answers in their order, and what they took.
struct Run {
  std::vector<std::vector<TokenId>> answers;
  int64_t num_tokens = 0, num_entries = 0;  // of output; batch entries that gave them
  int64_t drafted = 0, accepted = 0;
  double processor_seconds = 0, wall_seconds = 0;
};

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

GenerateRequest request_of(const Ask& ask) {
  GenerateRequest request{.text = ask.text};
  request.sampling = {.max_new_tokens = ask.max_new_tokens,
                      .temperature = ask.temperature,
                      .ignore_eos = ask.to_length,
                      .sampling_seed = ask.seed};
  return request;
}

// Answers all at once; returns their texts.
std::vector<std::string> answer(Engine& engine, const std::vector<Ask>& asks, Run& run) {
  std::vector<std::future<Result<GenerateResult>>> waiting;
  for (const Ask& ask : asks)
    waiting.push_back(std::async(asks.size() == 1 ? std::launch::deferred : std::launch::async,
                                 [&] { return engine.generate(request_of(ask)); }));
  std::vector<std::string> texts;
  for (auto& one : waiting) {
    const auto result = one.get();
    ESP_CHECK(result, "a request failed: {}", result.error().to_string());
    run.num_tokens += result->stats.completion_tokens;
    run.num_entries += result->stats.completion_tokens - result->stats.forwards_saved;
    run.drafted += result->stats.drafted_tokens;
    run.accepted += result->stats.accepted_draft_tokens;
    run.answers.push_back(result->output_ids);
    texts.push_back(result->text);
  }
  return texts;
}

using Mix = std::function<void(Engine&, Run&)>;

std::string user(const std::string& text) { return "<|user|>" + text + "<|eos|><|assistant|>"; }

constexpr const char* kThings[] = {
    "a lost kite",   "an old boat",  "a brave mouse", "the winter fair",
    "a red lantern", "two brothers", "a garden gate", "a silver bell",
    "a windmill",    "a sleepy cat", "the river",     "a new bridge",
    "a wooden box",  "a blue door",  "a small owl",   "the last train"};
constexpr const char* kCountries[] = {"France", "Japan",  "Italy",  "Spain",   "Egypt", "Greece",
                                      "Norway", "Poland", "Canada", "Germany", "India", "China"};

// `at_once` stories at a time.
Mix stories(size_t count, size_t at_once) {
  return [=](Engine& engine, Run& run) {
    for (size_t i = 0; i < count; i += at_once) {
      std::vector<Ask> asks;
      for (size_t k = i; k < i + at_once; ++k)
        asks.push_back({.text = user(fmt::format("Tell me a story about {}.",
                                                 kThings[k % std::size(kThings)])),
                        .temperature = 0.7f,
                        .max_new_tokens = 160,
                        .seed = k + 1});
      answer(engine, asks, run);
    }
  };
}

void chat(Engine& engine, Run& run) {
  for (const char* thing : {"a brave mouse", "a lost kite", "an old boat"}) {
    std::string text;
    for (const char* turn : {"Who are you?", "Tell me a story about {}.", "What can you do?",
                             "Tell me another story about {}."}) {
      text += user(fmt::format(fmt::runtime(turn), thing));
      text += answer(engine, {{.text = text, .temperature = 0.7f, .max_new_tokens = 120}}, run)[0];
      text += "<|eos|>";
    }
  }
}

// One question, many samples.
Mix judges(size_t at_once) {
  return [=](Engine& engine, Run& run) {
    for (const char* question :
         {"Tell me a story about the river. Is it a good one?", "What can you do?",
          "Make me laugh.", "Extract name, city as JSON from: Clara lives in Lisbon."})
      for (uint64_t seed = 1; seed <= 16;) {
        std::vector<Ask> asks;
        for (size_t k = 0; k < at_once; ++k)
          asks.push_back(
              {.text = user(question), .temperature = 0.5f, .max_new_tokens = 80, .seed = seed++});
        answer(engine, asks, run);
      }
  };
}

constexpr const char* kCode =
    "for name in names:\n    if name in seen:\n        continue\n    seen.add(name)\n"
    "    print(name, len(name))\n    total = total + len(name)\n";
constexpr const char* kPassage =
    "The old mill stood by the river. A small owl lived under its roof and slept all day. In the "
    "evening the owl flew over the garden to the wooden bridge and waited for the children who "
    "came "
    "home from the fair with red lanterns.";

// Code that is written again with small changes.
void code(Engine& engine, Run& run) {
  for (const char* name : {"name", "word", "city", "tree", "line", "step"}) {
    std::string text = kCode;
    for (size_t at = 0; (at = text.find("name", at)) != std::string::npos; at += 4)
      text.replace(at, 4, name);
    answer(engine,
           {{.text = text + "\n" + text + "\n" + text.substr(0, 14),
             .max_new_tokens = 160,
             .to_length = true}},
           run);
  }
}

void quotes(Engine& engine, Run& run) {
  const std::string passage = kPassage;
  for (const char* first : {"The old mill", "A small owl", "In the evening", "the owl flew"})
    answer(engine,
           {{.text = passage + "\n\n" + passage + "\n\nThe text says: \"" + first,
             .max_new_tokens = 60,
             .to_length = true}},
           run);
}

Mix facts(int times) {
  return [=](Engine& engine, Run& run) {
    for (int i = 0; i < times; ++i)
      for (const char* country : kCountries)
        for (const char* question : {"What is the capital of {}?", "Which continent is {} in?"})
          answer(
              engine,
              {{.text = user(fmt::format(fmt::runtime(question), country)), .max_new_tokens = 24}},
              run);
  };
}

const std::vector<std::pair<std::string, Mix>>& mixes() {
  static const std::vector<std::pair<std::string, Mix>> all = {
      {"stories", stories(8, 1)},
      {"stories, 4 at once", stories(16, 4)},
      {"stories, 16 at once", stories(32, 16)},
      {"chat", chat},
      {"judges", judges(1)},
      {"judges, 8 at once", judges(8)},
      {"code", code},
      {"quotes", quotes},
      {"facts", facts(1)},
      {"facts, asked 4 times", facts(4)}};
  return all;
}

std::unique_ptr<Engine> start(const Options& options, const std::string& algorithm) {
  EngineConfig config{.compute = {.device = "cpu", .num_threads = options.threads},
                      .speculation = {.speculative_algorithm = algorithm,
                                      .speculative_num_draft_tokens = options.draft_tokens}};
  config.model.model_path = options.model;
  if (algorithm == "STANDALONE")
    config.speculation.speculative_draft_model_path = options.draft_model;
  config.cache.max_total_tokens = 40000;
  config.sampling.random_seed = 1;
  auto engine = Engine::create(config);
  ESP_CHECK(engine, "{}", engine.error().to_string());
  return std::move(*engine);
}

Run measure(const Options& options, const std::string& algorithm, const Mix& mix) {
  const auto engine = start(options, algorithm);
  Run first, run;  // the first touches the weights
  answer(*engine, {{.text = "Hello", .max_new_tokens = 8, .to_length = true}}, first);
  const double processor = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const double wall = seconds_of(CLOCK_MONOTONIC);
  mix(*engine, run);
  run.wall_seconds = seconds_of(CLOCK_MONOTONIC) - wall;
  run.processor_seconds = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - processor;
  return run;
}

std::string spread(std::vector<double> values) {
  std::ranges::sort(values);
  return fmt::format("{:5.2f} ({:.2f}, {:.2f})", values[values.size() / 2], values.front(),
                     values.back());
}

void bench(const Options& options, const std::string& name, const Mix& mix) {
  std::vector<std::string> algorithms = options.algorithms;
  algorithms.insert(algorithms.begin(), "none");
  std::map<std::string, std::vector<double>> processor, wall;
  std::map<std::string, Run> last;
  for (int round = 0; round < options.rounds; ++round) {
    std::map<std::string, Run> runs;
    for (size_t i = 0; i < algorithms.size(); ++i) {
      const std::string& algorithm =
          algorithms[(i + static_cast<size_t>(round)) % algorithms.size()];
      runs[algorithm] = measure(options, algorithm, mix);
    }
    const Run& off = runs.at("none");
    for (const std::string& algorithm : algorithms) {
      const Run& run = runs.at(algorithm);
      ESP_CHECK(run.answers == off.answers, "{} with {} changes an answer", name, algorithm);
      processor[algorithm].push_back(off.processor_seconds / run.processor_seconds);
      wall[algorithm].push_back(off.wall_seconds / run.wall_seconds);
    }
    last = std::move(runs);
  }
  for (const std::string& algorithm : algorithms) {
    const Run& run = last.at(algorithm);
    fmt::print("{:<22} {:<9} {:>6} {:>6.2f} {:>8} {:>8} {:>6.0f} %   {:<20} {:<20}\n", name,
               algorithm, run.num_tokens,
               static_cast<double>(run.num_tokens) / static_cast<double>(run.num_entries),
               run.drafted, run.accepted,
               run.drafted == 0
                   ? 0.0
                   : 100.0 * static_cast<double>(run.accepted) / static_cast<double>(run.drafted),
               spread(processor[algorithm]), spread(wall[algorithm]));
  }
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Draft tokens on mixes of requests, by drafter");
  app.add_option("--model", options.model, "a model's folder")->capture_default_str();
  app.add_option("--draft-model", options.draft_model, "the folder that STANDALONE reads");
  app.add_option("--rounds", options.rounds, "runs of each mix with each drafter")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "that compute")->capture_default_str();
  app.add_option("--draft-tokens", options.draft_tokens, "of one request in one step, at most")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--algorithms", options.algorithms, "drafters, by --speculative-algorithm's names")
      ->capture_default_str();
  app.add_option("--only", options.only, "mixes, by name; may be repeated");
  CLI11_PARSE(app, argc, argv);
  fmt::print(
      "{} rounds, {} threads; times without draft tokens over times with them, of the same "
      "round: median (least, largest)\n",
      options.rounds, options.threads);
  fmt::print("{:<22} {:<9} {:>6} {:>6} {:>8} {:>8} {:>8}   {:<20} {:<20}\n", "mix", "drafter",
             "tokens", "/entry", "drafted", "accepted", "", "processor time", "wall time");
  for (const auto& [name, mix] : mixes())
    if (options.only.empty() || std::ranges::find(options.only, name) != options.only.end())
      bench(options, name, mix);
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::run(argc, argv); }
