// The C++17 interface: an answer, a stream that is cancelled, a batch, a constrained answer.
//
//   engine_cc [MODEL_FOLDER]      # without one: the model that ships
#include "espalier/engine.h"
#include "espalier/version.h"

#include <cstdio>
#include <string>
#include <vector>

namespace {

int fail(const espalier::EngineError& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  espalier::EngineOptions options;
  if (argc > 1) options.model_path = argv[1];
  options.settings = {{"max-total-tokens", "8192"}};
  auto engine = espalier::Engine::open(options);
  if (!engine) return fail(engine.error());

  espalier::GenerateOptions greedy;
  greedy.temperature = 0.0f;
  greedy.max_new_tokens = 12;
  auto answer = engine->generate("Once upon a time", greedy);
  if (!answer) return fail(answer.error());
  std::printf("%s (%d tokens, Espalier %s)\n", answer->text.c_str(), answer->completion_tokens,
              ESPALIER_VERSION_STRING);

  espalier::GenerateOptions endless = greedy;
  endless.max_new_tokens = engine->context_length() / 2;
  endless.ignore_eos = true;
  auto stream = engine->stream("Once upon a time", endless);
  if (!stream) return fail(stream.error());
  for (int i = 0; i < 3; ++i) {
    auto piece = stream->next();
    if (!piece) return fail(piece.error());
    if (*piece) std::printf("%s", (*piece)->text.c_str());
  }
  stream->cancel();
  auto ended = stream->finish();
  if (!ended) return fail(ended.error());
  if (ended->finish != ESP_FINISH_ABORT) return std::fprintf(stderr, "it was not cancelled\n"), 1;

  greedy.regex = " (yes|no)";
  auto answers = engine->generate_batch({"Is the sky blue?", "Is snow hot?"}, greedy);
  if (!answers) return fail(answers.error());
  for (const espalier::Answer& one : *answers) {
    std::printf("%s\n", one.text.c_str());
    if (one.text != " yes" && one.text != " no") return 1;
  }
  greedy.regex = "(";
  if (engine->generate("Once", greedy).ok()) return std::fprintf(stderr, "a bad regex runs\n"), 1;
  return 0;
}
