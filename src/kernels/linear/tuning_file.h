// A file of measured choices that processes share: whichever comes first measures, the others take
// what they find. Text, "KEY = VALUE" a line, between a line that says for what machine it was
// measured and one by which a file that is not whole is known.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace espalier::kernels {

// Any number of processes and threads may use one file. A file that is torn, another's or of
// another machine reads as empty and is written anew; one that cannot be written costs the next
// start some seconds, nothing else.
class TuningFile {
 public:
  // Neither keys nor values hold a line's end or " = "; no key is empty.
  using Choices = std::map<std::string, std::string>;

  // In `folder`, which is made when something is written; empty: nothing is kept. `machine` names
  // all that the choices depend on (device, driver, library), in one line.
  TuningFile(const std::filesystem::path& folder, std::string name, std::string machine);

  Choices read() const;
  // Adds to the file the choices whose keys it does not have, and returns what it then holds. Where
  // two processes have measured the same at once the first to come here is right, and the other
  // takes its choice: so all that share a file compute the same.
  Choices add(const Choices& measured) const;

  const std::filesystem::path& path() const { return path_; }  // empty: none

 private:
  bool write(const Choices& choices) const;

  std::filesystem::path path_;
  std::string machine_;
};

}  // namespace espalier::kernels
