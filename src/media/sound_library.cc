// FLAC, Ogg and MP3 by libsndfile, which is loaded when it is first used: its licence (LGPL) and
// its dependencies (libFLAC, libvorbis, libmpg123) are then no concern of who sends WAV. Source of
// the interface: libsndfile 1.0 and later, https://libsndfile.github.io/libsndfile/api.html
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "media/audio_formats.h"

namespace espalier::media {
namespace {

using SoundCount = int64_t;

// What the library fills when it opens a file. Its layout is the library's (SF_INFO).
struct SoundInfo {
  SoundCount frames = 0;
  int samplerate = 0, channels = 0, format = 0, sections = 0, seekable = 0;
};

// How the library reads a file (SF_VIRTUAL_IO).
struct SoundReader {
  SoundCount (*length)(void* file);
  SoundCount (*seek)(SoundCount offset, int whence, void* file);
  SoundCount (*read)(void* to, SoundCount count, void* file);
  SoundCount (*write)(const void* from, SoundCount count, void* file);
  SoundCount (*position)(void* file);
};

constexpr int kReadMode = 0x10;

struct SoundFile;  // the library's own

struct Sndfile {
  SoundFile* (*open_virtual)(SoundReader* reader, int mode, SoundInfo* info, void* file);
  int (*close)(SoundFile* file);
  SoundCount (*read_frames)(SoundFile* file, float* to, SoundCount frames);
  const char* (*error_text)(SoundFile* file);
};

template <typename Function>
bool find_symbol(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

// Null where it is not installed.
const Sndfile* sndfile() {
  static const std::optional<Sndfile> loaded = []() -> std::optional<Sndfile> {
    void* const library = dlopen("libsndfile.so.1", RTLD_NOW | RTLD_LOCAL);
    Sndfile found{};
    if (library != nullptr && find_symbol(library, "sf_open_virtual", found.open_virtual) &&
        find_symbol(library, "sf_close", found.close) &&
        find_symbol(library, "sf_readf_float", found.read_frames) &&
        find_symbol(library, "sf_strerror", found.error_text))
      return found;
    return std::nullopt;
  }();
  return loaded ? &*loaded : nullptr;
}

struct MemoryFile {
  SoundBytes bytes;
  SoundCount at = 0;
};

SoundCount memory_length(void* file) { return std::ssize(static_cast<MemoryFile*>(file)->bytes); }

SoundCount memory_seek(SoundCount offset, int whence, void* file) {
  auto& memory = *static_cast<MemoryFile*>(file);
  const SoundCount size = std::ssize(memory.bytes);
  const SoundCount base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? memory.at : size;
  if (offset < -base || offset > size - base) return -1;
  return memory.at = base + offset;
}

SoundCount memory_read(void* to, SoundCount count, void* file) {
  auto& memory = *static_cast<MemoryFile*>(file);
  const SoundCount there = std::clamp<SoundCount>(count, 0, std::ssize(memory.bytes) - memory.at);
  if (there > 0) std::memcpy(to, memory.bytes.data() + memory.at, static_cast<size_t>(there));
  memory.at += there;
  return there;
}

SoundCount memory_write(const void*, SoundCount, void*) { return 0; }
SoundCount memory_position(void* file) { return static_cast<MemoryFile*>(file)->at; }

SoundReader memory_reader() {
  return {memory_length, memory_seek, memory_read, memory_write, memory_position};
}

// An open file of the library over bytes that outlive it.
class OpenSound {
 public:
  OpenSound(const Sndfile& library, SoundBytes bytes) : library_(library), memory_{.bytes = bytes} {
    file_ = library_.open_virtual(&reader_, kReadMode, &info_, &memory_);
  }
  ~OpenSound() {
    if (file_ != nullptr) library_.close(file_);
  }
  OpenSound(const OpenSound&) = delete;
  OpenSound& operator=(const OpenSound&) = delete;

  bool is_open() const { return file_ != nullptr; }
  const SoundInfo& info() const { return info_; }
  // Why it is not open.
  std::string reason() const { return library_.error_text(nullptr); }
  // Frames that were read; 0 at the end.
  SoundCount read(std::span<float> to) {
    return library_.read_frames(file_, to.data(), std::ssize(to) / info_.channels);
  }
  // Bytes that were taken.
  SoundCount position() const { return memory_.at; }

 private:
  const Sndfile& library_;
  SoundReader reader_ = memory_reader();
  MemoryFile memory_;
  SoundInfo info_;
  SoundFile* file_ = nullptr;
};

Result<std::unique_ptr<OpenSound>> open_sound(SoundBytes bytes) {
  const Sndfile* const library = sndfile();
  if (library == nullptr) {
    return fail(error(StatusCode::kUnimplemented,
                      "this format is read by libsndfile, which is not installed here: install the "
                      "package libsndfile1, or send WAV"));
  }
  auto sound = std::make_unique<OpenSound>(*library, bytes);
  if (!sound->is_open()) {
    return fail(invalid_argument("libsndfile does not read the file ({}): send WAV or FLAC",
                                 sound->reason()));
  }
  return sound;
}

// A stream that was written into a pipe has no length, for which the library has the largest
// number or none.
bool states_length(const SoundInfo& info) {
  return info.frames > 0 && info.frames < std::numeric_limits<SoundCount>::max() / 2;
}

// Appends the sound's samples; the bytes that the library took for them. whole: a sound that ends
// before its stated length is cut off.
Result<int64_t> decode_part(OpenSound& sound, const AudioHeader& header, int64_t frames_max,
                            bool whole, std::vector<float>& samples) {
  const SoundInfo& info = sound.info();
  if (info.channels != header.num_channels || info.samplerate != header.sample_rate) {
    return fail(
        invalid_argument("the number of channels or the sample rate changes: save the audio anew"));
  }
  constexpr int64_t kFramesAtOnce = 4096;
  std::vector<float> frames(static_cast<size_t>(kFramesAtOnce * info.channels));
  int64_t done = 0;
  while (const SoundCount count = std::max<SoundCount>(0, sound.read(frames))) {
    if (std::ssize(samples) + count > frames_max) {
      return fail(error(StatusCode::kFailedPrecondition,
                        "the sound is longer than the limit of {} samples: send it in parts",
                        frames_max));
    }
    ESP_RETURN_IF_ERROR(
        append_mixed(std::span(frames).first(static_cast<size_t>(count * info.channels)),
                     info.channels, samples));
    done += count;
  }
  if (whole && states_length(info) && done < info.frames) {
    return fail(invalid_argument(
        "the file ends after {} of {} samples: it is cut off, send it anew", done, info.frames));
  }
  return sound.position();
}

}  // namespace

Result<AudioHeader> read_sound_header(SoundBytes bytes) {
  ESP_ASSIGN_OR_RETURN(const auto sound, open_sound(bytes));
  const SoundInfo& info = sound->info();
  return AudioHeader{.sample_rate = info.samplerate,
                     .num_channels = info.channels,
                     .num_frames = states_length(info) ? info.frames : 0};
}

// libsndfile reads no further than the length that it states, and that may be an estimate (an MP3
// without a table) or the first of several joined files': what lies behind is opened anew.
Status decode_sound(SoundBytes bytes, const AudioHeader& header, int64_t frames_max,
                    std::vector<float>& samples) {
  const SoundBytes magic = bytes.first(std::min<size_t>(4, bytes.size()));
  const bool is_ogg = std::ranges::equal(magic, std::string_view("OggS"));
  const bool is_flac = std::ranges::equal(magic, std::string_view("fLaC"));
  constexpr int kPartsMax = 1000;
  for (int part = 0; part < kPartsMax; ++part) {
    const SoundBytes own = is_ogg ? bytes.first(next_ogg_stream(bytes)) : bytes;
    ESP_ASSIGN_OR_RETURN(const auto sound, open_sound(own));
    const Result<int64_t> used =
        decode_part(*sound, header, frames_max, is_ogg || is_flac, samples);
    if (!used) return used.error();
    if (is_flac || *used <= 0) return Status();
    bytes = bytes.subspan(is_ogg ? own.size() : static_cast<size_t>(*used));
    if (!is_ogg) bytes = bytes.subspan(next_mp3_frames(bytes));
    if (bytes.empty()) return Status();
  }
  return invalid_argument("more than {} sounds are joined in the file: save the audio anew",
                          kPartsMax);
}

}  // namespace espalier::media
