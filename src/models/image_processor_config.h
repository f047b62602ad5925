// preprocessor_config.json: how a picture becomes an encoder's input.
#pragma once

#include <filesystem>

#include "base/status.h"
#include "media/processor.h"
#include "models/decoder_spec.h"

namespace espalier {

// Reads the folder's preprocessor_config.json, or the image_processor in its processor_config.json.
// Fails by the field's name where a step is not known, or where pictures would not become as many
// patches, or tiles of such sizes, as the encoder has positions for.
Result<ImageProcessorSpec> read_image_processor(const std::filesystem::path& folder,
                                                const PatchesSpec& patches,
                                                const std::optional<TilesSpec>& tiles = {});

// Of a model that reads pictures in tiles the frames of its videos, each one square of a tile's
// size, cut from its middle. Reads video_preprocessor_config.json where there is one.
Result<ImageProcessorSpec> read_frame_processor(const std::filesystem::path& folder,
                                                const PatchesSpec& patches,
                                                const ImageProcessorSpec& pictures);

// What the same file states of sounds, which must be what Espalier makes of them: the spectrogram
// of Whisper's feature extractor. Fails by the field's name.
Status check_sound_processor(const std::filesystem::path& folder, const SoundSpec& sound);

}  // namespace espalier
