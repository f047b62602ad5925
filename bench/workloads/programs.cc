#include "bench/workloads/programs.h"

#include <memory>

#include "bench/workloads/texts.h"

namespace espalier::workloads {

namespace {

using lang::Forks;
using lang::gen;
using lang::GenOptions;
using lang::State;

// Greedy sampling with a fixed length, so that the text of a small model does not change the work.
GenOptions tokens(int32_t count) {
  GenOptions options;
  options.max_tokens = count;
  options.temperature = 0;
  options.ignore_eos = true;
  return options;
}

// Each text is shared by the jobs that hold it.
using Text = std::shared_ptr<const std::string>;
Text text_of(std::string s) { return std::make_shared<const std::string>(std::move(s)); }

std::string number(int i) { return std::to_string(i); }
uint64_t seed_of(int workload, int i, int part = 0) {
  return static_cast<uint64_t>(workload) * 1000000 + static_cast<uint64_t>(i) * 1000 +
         static_cast<uint64_t>(part);
}

// Appends make(i) to each branch; one after the other where programs are not parallel.
template <typename Make>
void to_each(Forks& branches, bool parallel, const Make& make) {
  for (int i = 0; i < static_cast<int>(branches.size()); ++i) {
    branches[i] += make(i);
    if (!parallel) (void)branches[i].sync();
  }
}

// MMLU, 5-shot: one token out.
std::vector<Job> multiple_choice(const Setup& setup) {
  const std::vector<Problem> all = problems(setup.data, setup.num_programs + 5);
  std::string shots = "The following are multiple choice questions with answers.\n\n";
  for (size_t i = 0; i < 5; ++i)
    shots += "Question: " + all[i].question + "\n(A) 12 (B) 18 (C) 24 (D) 36\nAnswer: B\n\n";
  const Text shared = text_of(shots);
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([shared, question = all[static_cast<size_t>(i) + 5].question](State& s) {
      s += *shared + "Question: " + question + "\n(A) 10 (B) 15 (C) 20 (D) 25\nAnswer:";
      s += gen("answer", tokens(1));
    });
  return jobs;
}

// HellaSwag, 20-shot: four endings each; the examples are shared by all, the question by its
// endings.
std::vector<Job> completion_choice(const Setup& setup) {
  std::string shots = "Choose the best ending.\n\n";
  for (int i = 0; i < 20; ++i)
    shots += words(seed_of(2, i), 18) + " -> " + words(seed_of(2, i, 1), 8) + "\n";
  const Text shared = text_of(shots);
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([shared, i](State& s) {
      s += *shared + words(seed_of(2, 100 + i), 24) + " ->";
      lang::Strings endings;
      for (int c = 0; c < 4; ++c) endings.push_back(" " + words(seed_of(2, 100 + i, c + 1), 10));
      s += lang::select("ending", endings);
    });
  return jobs;
}

// ReAct: thoughts and actions are generated, observations come from a recorded trace.
std::vector<Job> react_agent(const Setup& setup) {
  std::string shots = "Answer questions by thought, action and observation.\n\n";
  for (int i = 0; i < 4; ++i)
    shots += "Question: " + words(seed_of(3, i), 12) +
             "?\nThought: " + words(seed_of(3, i, 1), 24) + "\nAction: Search[" +
             words(seed_of(3, i, 2), 3) + "]\nObservation: " + words(seed_of(3, i, 3), 50) + "\n\n";
  const Text shared = text_of(shots);
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([shared, i](State& s) {
      s += *shared + "Question: " + words(seed_of(3, 100 + i), 14) + "?\n";
      for (int step = 1; step <= 3; ++step) {
        s += "Thought " + number(step) + ":" + gen("thought" + number(step), tokens(20));
        s += "\nAction " + number(step) + ":" + gen("action" + number(step), tokens(8));
        s += "\nObservation " + number(step) + ": " + words(seed_of(3, 100 + i, step), 60) + "\n";
      }
      s += "Answer:" + gen("answer", tokens(8));
    });
  return jobs;
}

// Generative agents: each agent's calls begin with its own description and memories.
std::vector<Job> generative_agents(const Setup& setup) {
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([i](State& s) {
      const int agent = i % 4;
      s += "You play a person of a small town. Keep to what the person knows.\n" +
           words(seed_of(4, agent), 220) + "\nIt is " + number(6 + i / 4) + " o'clock. ";
      s += words(seed_of(4, agent, 1 + i / 4), 30) + "\nDoes this matter, 1 to 10? ";
      s += gen("matters", tokens(2));
      s += "\nWhat does the person do next?" + gen("next", tokens(24));
    });
  return jobs;
}

// Tree of thought on grade-school mathematics: proposals are judged, and the best ones continued.
std::vector<Job> tree_of_thought(const Setup& setup) {
  const std::vector<Problem> all = problems(setup.data, setup.num_programs);
  const bool parallel = setup.parallel;
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([question = all[static_cast<size_t>(i)].question, parallel](State& s) {
      s += "Solve the problem step by step.\n\nProblem: " + question + "\n";
      for (int level = 1; level <= 2; ++level) {
        const std::string plan = "plan" + number(level), score = "score" + number(level);
        Forks branches = s.fork(3);
        to_each(branches, parallel, [&](int b) {
          return "Way " + number(b + 1) + ", step " + number(level) + ":" + gen(plan, tokens(24)) +
                 "\nHow good is this, 1 to 10? " + gen(score, tokens(2));
        });
        // The longest score text wins: any rule does, for the model's numbers mean little.
        size_t best = 0;
        std::string said;
        for (size_t b = 0; b < branches.size(); ++b) {
          const std::string value = branches[b][score].str();
          if (b == 0 || value > said) {
            best = b;
            said = value;
          }
        }
        s += "Step " + number(level) + ":" + branches[best][plan].str() + "\n";
      }
      s += "Answer:" + gen("answer", tokens(8));
    });
  return jobs;
}

// Skeleton of thought: points first, then all of them written out at once.
std::vector<Job> skeleton_of_thought(const Setup& setup) {
  const bool parallel = setup.parallel;
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([i, parallel](State& s) {
      s += "You write in two passes: a skeleton of short points, then each point in full.\n" +
           words(seed_of(6, 0), 60) + "\n\nQuestion: " + words(seed_of(6, 1 + i), 20) +
           "?\nSkeleton:";
      s += gen("skeleton", tokens(32));
      Forks points = s.fork(4);
      to_each(points, parallel, [](int p) {
        return "\nPoint " + number(p + 1) + " in full:" + gen("point", tokens(32));
      });
      std::string whole;
      for (const lang::Value& point : points["point"]) whole += point.str() + "\n";
      s += "\nIn full: " + whole;
      s += "In short:" + gen("short", tokens(16));
    });
  return jobs;
}

// LLM judge: branch, solve, merge.
std::vector<Job> llm_judge(const Setup& setup) {
  const bool parallel = setup.parallel;
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([i, parallel](State& s) {
      static constexpr const char* kDimensions[] = {"clarity", "originality", "evidence", "style"};
      s +=
          "You judge essays by several dimensions.\n\nEssay: " + words(seed_of(7, i), 240) + "\n\n";
      Forks branches = s.fork(4);
      to_each(branches, parallel, [](int b) {
        return std::string("Judge its ") + kDimensions[b] +
               " in two sentences:" + gen("judgement", tokens(32));
      });
      std::string all;
      for (const lang::Value& judgement : branches["judgement"]) all += judgement.str() + "\n";
      s += "Judgements:\n" + all;
      s += "In all:" + gen("summary", tokens(32)) + "\nGrade:" + gen("grade", tokens(1));
    });
  return jobs;
}

// JSON decoding: each field is constrained by a regular expression.
std::vector<Job> json_decoding(const Setup& setup) {
  const Text shared =
      text_of("Extract what is asked for, as JSON.\n\n" + words(seed_of(8, 0), 120) + "\n\n");
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([shared, i](State& s) {
      s += *shared + "Text: " + words(seed_of(8, 1 + i), 60) + "\nJSON: ";
      GenOptions options;
      options.max_tokens = 80;
      options.temperature = 0;
      options.regex =
          R"(\{"name": "[a-z ]{3,12}", "age": [1-9][0-9]?, "city": "[a-z ]{3,12}", "member": (true|false)\})";
      s += gen("json", options);
    });
  return jobs;
}

// Four turns, of which each prompt is the whole conversation so far.
std::vector<Job> chat(const Setup& setup, int workload, int32_t num_out) {
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([i, workload, num_out](State& s) {
      s += "You are a helpful assistant.\n";
      for (int turn = 0; turn < 4; ++turn)
        s += "User: " + words(seed_of(workload, i, turn), 60) +
             "\nAssistant:" + gen("turn" + number(turn), tokens(num_out)) + "\n";
    });
  return jobs;
}

// Retrieval-augmented generation: passages of a shared store, a search query, then the answer.
std::vector<Job> retrieval(const Setup& setup) {
  std::vector<Job> jobs;
  for (int i = 0; i < setup.num_programs; ++i)
    jobs.push_back([i](State& s) {
      s += "Answer from the passages.\n\n";
      for (int hop = 0; hop < 2; ++hop) {
        // Questions come in topics; those of one topic find the same passages.
        const int topic = i % 4 * 2 + hop;
        s += "Passage: " + words(seed_of(11, topic), 160) + "\n";
      }
      s += "Question: " + words(seed_of(11, 100 + i), 16) + "?\nSearch:" + gen("query", tokens(8));
      s += "\nPassage: " + words(seed_of(11, 200 + i % 8), 100) +
           "\nAnswer:" + gen("answer", tokens(24));
    });
  return jobs;
}

}  // namespace

const std::vector<Workload>& all_workloads() {
  static const std::vector<Workload> all = {
      {"multiple_choice", "5-shot multiple choice, one token out", 24, multiple_choice},
      {"completion_choice", "20-shot choice of an ending", 12, completion_choice},
      {"react_agent", "thoughts and actions along a recorded trace", 12, react_agent},
      {"generative_agents", "people of a town, along a recorded trace", 24, generative_agents},
      {"tree_of_thought", "proposals, judged, and the best gone on with", 6, tree_of_thought},
      {"skeleton_of_thought", "points first, then each in full", 8, skeleton_of_thought},
      {"llm_judge", "branch, solve, merge", 8, llm_judge},
      {"json_decoding", "fields held to a regular expression", 16, json_decoding},
      {"chat_short", "four turns, short answers", 12,
       [](const Setup& setup) { return chat(setup, 9, 6); }},
      {"chat_long", "four turns, long answers", 8,
       [](const Setup& setup) { return chat(setup, 10, 64); }},
      {"retrieval", "passages of a store, a query, an answer", 16, retrieval},
  };
  return all;
}

}  // namespace espalier::workloads
