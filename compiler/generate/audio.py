"""Sound as the log-mel frames that Whisper's encoder takes."""

from __future__ import annotations

import io
import os
import wave
from dataclasses import dataclass

import numpy as np

from mlirc.errors import MlircError, missing_package
from mlirc.files.opening import read_bytes, shorten
from mlirc.generate.sizes import Source

RATE = 16000  # samples per second, in all of Whisper
_HOP, _WINDOW = 160, 400  # samples from frame to frame, and of a frame's transform
_LIMIT = 64 << 20


@dataclass(frozen=True, eq=False)
class Speech:
    """One window of sound to be written down: f32 [bins, frames]; `language` and `task` as the model's generation
    config names them ("en" or "<|en|>"; "transcribe", "translate"), None for what it finds itself."""

    frames: np.ndarray
    language: str | None = None
    task: str | None = None


def read_audio(path: str | os.PathLike) -> np.ndarray:
    """The samples f32 [n] of a file, 16,000 a second: a WAV file of whole numbers, or .npy of floats.

    Several channels are averaged. Raises MlircError for other files and rates.
    """
    shown, data = shorten(os.fspath(path)), read_bytes(path, limit=_LIMIT)
    if data[:4] == b"RIFF":
        return _wav(data, shown)
    if data[:6] != b"\x93NUMPY":
        raise MlircError(f"{shown}: neither a WAV nor a .npy file: convert it, as by ffmpeg -i FILE -ar {RATE} out.wav")
    try:
        samples = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as e:
        raise MlircError(f"{shown}: damaged (no array of numbers)") from e
    return samples_of(samples, shown)


def samples_of(samples: np.ndarray, name: str = "the sound") -> np.ndarray:
    """An array of samples as f32 [n]. Raises MlircError for what is none."""
    if samples.ndim != 1 or samples.dtype.kind != "f" or not len(samples) or not np.isfinite(samples).all():
        raise MlircError(f"{name}: is {samples.dtype} {list(samples.shape)}: give floats [n], {RATE} a second, -1 to 1")
    return samples.astype(np.float32)


def _wav(data: bytes, shown: str) -> np.ndarray:
    try:
        with wave.open(io.BytesIO(data)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as e:
        raise MlircError(
            f"{shown}: not a WAV file of whole numbers ({e}): convert it with ffmpeg -i FILE out.wav"
        ) from e
    if rate != RATE:
        raise MlircError(f"{shown}: {rate} samples a second: convert it, as by ffmpeg -i FILE -ar {RATE} out.wav")
    raw = raw[: len(raw) // (width * channels) * (width * channels)]
    if not raw:
        raise MlircError(f"{shown}: holds no sound")
    if width == 1:
        samples = (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    else:
        whole = np.zeros((len(raw) // width, 4), np.uint8)  # little-endian, at the upper end of 32 bits
        whole[:, 4 - width :] = np.frombuffer(raw, np.uint8).reshape(-1, width)
        samples = whole.reshape(-1).view("<i4").astype(np.float32) / 2**31
    return samples.reshape(-1, channels).mean(1)


def log_mel(samples: np.ndarray, source: Source) -> np.ndarray:
    """The frames f32 [bins, frames] of one window of samples f32 [n] (transformers' `WhisperFeatureExtractor`).

    Raises MlircError for sound that is longer than the window."""
    try:
        from transformers import WhisperFeatureExtractor
    except ModuleNotFoundError as e:
        raise missing_package(e) or e from e
    frames = source.lengths[-1]
    if len(samples) > frames * _HOP:
        raise MlircError(
            f"the sound has {len(samples) / RATE:.1f} s, and the model hears {frames * _HOP / RATE:g} s at once: cut it"
        )
    extractor = WhisperFeatureExtractor(
        feature_size=source.bins, sampling_rate=RATE, hop_length=_HOP, n_fft=_WINDOW, chunk_length=frames * _HOP // RATE
    )
    extractor.n_samples = frames * _HOP  # windows of no whole seconds, too
    made = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
    return np.ascontiguousarray(made[:, :frames], np.float32)


def first_tokens(speech: Speech, source: Source) -> list[int | None]:
    """What the decoder begins with, as transformers' `generate` chooses it; None for a language that it has to find."""
    start = list(source.start)
    if speech.language is not None:
        names = dict(source.languages)
        token = names.get(speech.language, names.get(f"<|{speech.language}|>"))
        if token is None:
            known = ", ".join(n.strip("<|>") for n in list(names)[:8]) or "none"
            raise MlircError(
                f"language '{speech.language}': the model knows {known}{', ...' if len(names) > 8 else ''}"
            )
        start[1:2] = [token]
    tasks = dict(source.tasks)
    if speech.task is not None and speech.task not in tasks:
        raise MlircError(f"task '{speech.task}': the model knows {', '.join(tasks) or 'none'}")
    found = [i for i, token in enumerate(start) if token in tasks.values()]
    if speech.task is not None:
        start = [t for i, t in enumerate(start) if i not in found]
        start.insert(found[0] if found else len(start), tasks[speech.task])
    elif speech.language is not None and "transcribe" in tasks and not found:
        start.append(tasks["transcribe"])
    if source.plain is not None and start[-1] != source.plain:
        start.append(source.plain)
    return start
