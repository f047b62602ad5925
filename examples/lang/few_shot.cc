// Few-shot learning over a batch: the examples are a constant prefix, which run_batch computes once
// before any question arrives.
#include "example.h"

namespace {
using namespace espalier::lang;

const Program answer("answer", {"question"}, [](State& s, const Value& question) {
  s += "Question: What is the capital of Italy?\nAnswer: Rome.\n\n";
  s += "Question: What color is the sky on a clear day?\nAnswer: Blue.\n\n";
  s += "Question: How many legs does a spider have?\nAnswer: Eight.\n\n";
  s += "Question: " + question + "\nAnswer:";
  s += gen("answer", {.max_tokens = 12, .stop = {".", "\n"}, .temperature = 0});
});

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  const std::vector<std::string> questions = {
      "What is the capital of France?", "What is the capital of Japan?", "What color is grass?",
      "How many days are in a week?"};
  std::vector<Arguments> batch;
  for (const std::string& question : questions) batch.push_back({{"question", question}});
  const auto states = run_batch(
      answer, batch, {.run = {.backend = *backend}, .progress = progress_bar("few-shot")});
  int worst = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    worst = std::max(worst, example::end(states[i]));
    if (!states[i].error().ok()) continue;
    std::cout << questions[i] << states[i]["answer"] << "  ("
              << states[i].meta_info("answer").cached_tokens << " of "
              << states[i].meta_info("answer").prompt_tokens << " prompt tokens cached)\n";
  }
  return worst;
}
