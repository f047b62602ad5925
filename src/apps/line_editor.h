// Reads lines from a terminal with editing and a history that outlives the process (libedit), or
// plainly from a pipe. Used by the main thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace espalier::apps {

class LineEditor {
 public:
  // history: the file of earlier lines; empty, or one that cannot be written: they are forgotten at
  // the end. words: what Tab completes at the beginning of a line ("/help").
  LineEditor(const std::filesystem::path& history, std::vector<std::string> words);
  ~LineEditor();

  // A line without its end; nothing at the end of input. An interrupt gives an empty line.
  std::optional<std::string> read(const std::string& prompt);
  // A text of several lines is one entry of the history.
  void remember(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Where `espalier chat` keeps its history: in the folder of XDG_STATE_HOME, else ~/.local/state.
// Empty without a home.
std::filesystem::path default_history_file();

}  // namespace espalier::apps
