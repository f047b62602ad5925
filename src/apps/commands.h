// The commands of `espalier`. Each takes its arguments without its name and returns an exit code
// (command_line.h), with errors already reported on standard error. One command runs in a process,
// on its main thread.
#pragma once

#include <string>
#include <vector>

namespace espalier::apps {

int run_serve(const std::vector<std::string>& args);
int run_route(const std::vector<std::string>& args);
int run_generate(const std::vector<std::string>& args);
int run_program(const std::vector<std::string>& args);
int run_chat(const std::vector<std::string>& args);
int run_cache_export(const std::vector<std::string>& args);
int run_cache_import(const std::vector<std::string>& args);
int run_models_list(const std::vector<std::string>& args);
int run_models_convert(const std::vector<std::string>& args);
int run_models_quantize(const std::vector<std::string>& args);
int run_replay(const std::vector<std::string>& args);
int run_top(const std::vector<std::string>& args);
int run_doctor(const std::vector<std::string>& args);
int run_inspect(const std::vector<std::string>& args);
int run_tokenize(const std::vector<std::string>& args);
int run_template(const std::vector<std::string>& args);
int run_bench_serving(const std::vector<std::string>& args);
int run_bench_offline(const std::vector<std::string>& args);
int run_bench_fleet(const std::vector<std::string>& args);
int run_grammar_check(const std::vector<std::string>& args);
int run_grammar_mask(const std::vector<std::string>& args);
int run_grammar_explain(const std::vector<std::string>& args);
int run_grammar_test(const std::vector<std::string>& args);
int run_grammar_conformance(const std::vector<std::string>& args);

}  // namespace espalier::apps
