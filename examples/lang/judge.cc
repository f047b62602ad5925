// Figure 2 of the SGLang paper: an essay is judged in several dimensions at once (branch, solve,
// merge), and the verdict comes as JSON. The figure's image is left out when no path is given, for
// the model that ships reads none.
#include "example.h"

namespace {
using namespace espalier::lang;
using espalier::lang::system;  // not the C library's

const std::vector<std::string> dimensions = {"Clarity", "Originality", "Evidence"};

void multi_dimensional_judge(State& s, const std::string& path, const std::string& essay) {
  s += system("Evaluate an essay about an image.");
  s += user((path.empty() ? Expr() : image(path)) + "Essay: " + essay);
  s += assistant("Sure!");

  // Return directly if it is not related.
  s += user("Is the essay related to the image?");
  s += assistant(select("related", {"yes", "no"}));
  if (s["related"] == "no") return;

  // Judge the dimensions in parallel.
  auto forks = s.fork(static_cast<int>(dimensions.size()));
  for (auto [f, dimension] : zip(forks, dimensions)) {
    f += user("Evaluate based on the following dimension: " + dimension +
              ". End your judgment with the word 'END'");
    f += assistant("Judgment:" + gen("judgment", {.max_tokens = 48, .stop = "END"}));
  }

  // Merge the judgments; give a summary and a grade as JSON.
  const auto judgment = join(forks["judgment"], "\n");
  s += user("Provide the judgment, summary, and a letter grade");
  s += assistant(judgment + "In summary," + gen("summary", {.max_tokens = 48, .stop = "."}) +
                 "The grade of it is" + gen("grade", {.max_tokens = 4}));
  const std::string schema = R"(\{"summary": "[\w\d\s]+\.", "grade": "[ABCD][+-]?"\})";
  s += user("Return in the JSON format.");
  s += assistant(gen("output", {.max_tokens = 128, .regex = schema}));
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  const State state = run(
      multi_dimensional_judge, {.backend = *backend, .defaults = {.temperature = 0, .seed = 1}},
      argc > 2 ? argv[2] : "", "A boat lies in the harbor. The water is calm and the sky is red.");
  if (state.has("output")) std::cout << "output: " << state["output"] << "\n";
  std::cout << "related: " << state["related"] << "\n";
  return example::end(state);
}
