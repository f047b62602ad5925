// A file of measured choices that processes share: the first process measures, later ones read.
// Text, one "KEY = VALUE" a line, between a header that names the machine and a digest line by
// which an incomplete file is detected.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace espalier::kernels {

// Any number of processes and threads may use one file. A file that is torn or of another machine
// reads as empty and is written anew; one that cannot be written costs the next start some seconds
// of tuning and nothing else.
class TuningFile {
 public:
  // Neither keys nor values hold a line's end or " = "; no key is empty.
  using Choices = std::map<std::string, std::string>;

  // In `folder`, which is created when something is written; empty: nothing is kept. `machine`
  // names everything that the choices depend on (device, driver, library), in one line.
  TuningFile(const std::filesystem::path& folder, std::string name, std::string machine);

  Choices read() const;
  // Adds the choices whose keys the file does not have, and returns what it then holds. Where two
  // processes measure the same key at once, the first to call add() is kept and the other takes its
  // choice, so all processes that share a file compute the same bits.
  Choices add(const Choices& measured) const;

  const std::filesystem::path& path() const { return path_; }  // empty: none

 private:
  bool write(const Choices& choices) const;

  std::filesystem::path path_;
  std::string machine_;
};

}  // namespace espalier::kernels
