// A file of tuning results that processes share: the first process measures, later ones read.
// Text, one "KEY = VALUE" a line, between a header that names the system and a digest line by
// which an incomplete file is detected.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace espalier::kernels {

// Any number of processes and threads may use one file. A file that is torn or of another system
// reads as empty and is written anew; one that cannot be written costs the next start some seconds
// of tuning and nothing else.
class TuningFile {
 public:
  // Neither keys nor values hold a line's end or " = "; no key is empty.
  using Entries = std::map<std::string, std::string>;

  // In `folder`, which is created when something is written; empty: nothing is kept. `system`
  // names everything that the entries depend on (device, driver, library), in one line.
  TuningFile(const std::filesystem::path& folder, std::string name, std::string system);

  Entries read() const;
  // Adds the entries whose keys the file does not have, and returns what it then holds. Where two
  // processes measure the same key at once, the first to call add() is kept and the other takes its
  // entry, so all processes that share a file compute the same bits.
  Entries add(const Entries& measured) const;

  const std::filesystem::path& path() const { return path_; }  // empty: none

 private:
  bool write(const Entries& entries) const;

  std::filesystem::path path_;
  std::string system_;
};

}  // namespace espalier::kernels
