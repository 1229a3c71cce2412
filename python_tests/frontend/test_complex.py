"""Complex numbers inside of models beside PyTorch: rotations, Fourier transforms, spectra of signals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from mlirc.frontend.fourier import DIRECT, LARGEST, roots_of_unity
from support.models.small import check
from support.models.together import Calls, check_together, randn

as_complex = torch.view_as_complex


def parts(z):
    return torch.view_as_real(z.resolve_conj())


ANGLES = torch.outer(torch.arange(7.0), 100 ** -(torch.arange(4) / 4))


class Rotary(nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones_like(ANGLES), ANGLES), persistent=persistent)

    def forward(self, q):
        pairs = as_complex(q.reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[None, :, None, :]).flatten(3)


def assigned(x):
    z = torch.zeros(3, 5, dtype=torch.cfloat)
    z[:, 1:3] = torch.fft.rfft(x)[:, :2]
    return parts(z)


HANN = torch.hann_window(16)
FOURIER = [
    (lambda x: parts(torch.fft.fft(x)), (3, 7)),
    (lambda x: torch.fft.fftn(x, dim=(1, 2)).real, (2, 5, 6)),
    (lambda x: parts(torch.fft.fft(x, n=10, dim=0, norm="ortho")), (3, 7)),
    (lambda x: parts(torch.fft.fft(x, n=4, norm="forward")), (3, 7)),
    (lambda x: parts(torch.fft.ifft(as_complex(x))), (3, 7, 2)),
    (lambda x: parts(torch.fft.rfft(x)), (3, 8)),
    (lambda x: parts(torch.fft.rfft(x)), (3, 1)),
    (lambda x: torch.fft.irfft(as_complex(x), n=9), (3, 5, 2)),
    (lambda x: torch.fft.irfft(as_complex(x), n=20, norm="ortho"), (3, 5, 2)),
    (lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:]), (3, 7, 6)),
    (lambda x: parts(torch.fft.ihfft(torch.fft.hfft(as_complex(x)))), (3, 5, 2)),
    (lambda x: parts(torch.fft.fftshift(torch.fft.fft2(x))), (3, 8)),
    (lambda x: torch.fft.irfft(torch.fft.rfft(x, n=32) * torch.fft.rfft(x[:1], n=32).conj(), n=32), (3, 16)),
    (lambda x: parts(torch.stft(x, 16, 4, window=HANN, return_complex=True)), (2, 64)),
    (lambda x: torch.stft(x, 16, 5, 10, HANN[:10], onesided=False, return_complex=True).abs(), (50,)),
    (lambda x: torch.istft(torch.stft(x, 16, 4, window=HANN, return_complex=True), 16, 4, window=HANN), (2, 64)),
    # Conjugates that PyTorch makes lazily, and their imaginary parts, which it negates lazily.
    (
        lambda x: (torch.fft.ihfft(x).imag, torch.fft.ifft(x).imag + x, torch.fft.fft(x).conj().imag.resolve_neg()),
        (3, 9),
    ),
    (lambda x: parts(torch.fft.ihfft(x).resolve_conj()), (3, 8)),
    (
        lambda x: torch.istft(torch.stft(x, 16, 5, window=HANN, return_complex=True), 16, 5, window=HANN, length=52),
        (50,),
    ),
]
ARITHMETIC = [
    (lambda x, y: parts(as_complex(x) / as_complex(y)), ((3, 2), (3, 2))),
    (lambda x, y: parts(y / as_complex(x) + as_complex(x) / y), ((3, 2), (3,))),
    (lambda x: (as_complex(x).abs(), as_complex(x).angle()), ((3, 2),)),
    (lambda x: parts(torch.exp(as_complex(x) * 1j) - 2), ((3, 2),)),
    (lambda x: parts(x * 1j + 2), ((3, 4),)),
    (lambda x, y: parts(as_complex(x) @ as_complex(y)), ((3, 4, 2), (4, 5, 2))),
    (lambda x, y: parts(torch.einsum("bi,io->bo", as_complex(x), as_complex(y))), ((3, 4, 2), (4, 5, 2))),
    (lambda x, y: parts(F.linear(as_complex(x), as_complex(y))), ((3, 4, 2), (5, 4, 2))),
    (lambda x: parts(torch.cat([as_complex(x) ** 2, as_complex(x).conj()]).sum(0)), ((3, 4, 2),)),
    (lambda x: parts(torch.where(x[..., 0] > 0, as_complex(x), 0)), ((3, 4, 2),)),
    (assigned, ((3, 9),)),
]


@pytest.mark.parametrize("persistent", [False, True])
def test_rotary_embeddings(persistent):
    check(from_torch(Rotary(persistent), (randn(2, 7, 3, 8),)))


def test_fourier_transforms():
    check_together([(f, (randn(*shape),)) for f, shape in FOURIER], levels=["tiles"], kinds=["plain"])


def test_arithmetic():
    check_together(
        [(f, tuple(randn(*s) for s in shapes)) for f, shapes in ARITHMETIC], levels=["tiles"], kinds=["plain"]
    )


def test_complex_inputs_and_results():
    """They are compared as pairs of real numbers."""
    z = as_complex(randn(3, 4, 2))
    cases = [(torch.fft.fft, (randn(3, 4),)), (lambda z, y: (z * y, z.conj()), (z, z[0])), (torch.abs, (z,))]
    check_together(cases, kinds=["plain"])


def test_fourier_on_the_host_device():
    check_together([(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 1j, n=9), (randn(2, 9),))], kinds=["plain"])


@pytest.mark.parametrize("size", [DIRECT * 4, 1000, DIRECT + 1])
def test_long_transforms(size):
    check(from_torch(Calls(lambda x: parts(torch.fft.fft(x))), (randn(2, size),)))


@pytest.mark.parametrize(
    ("function", "x", "words"),
    [
        (lambda x: parts(as_complex(x).sqrt()), randn(3, 2), "op aten::sqrt in the model on complex numbers"),
        (lambda x: parts(torch.fft.fft(x)), randn(1, LARGEST + 3), "4099 elements, which is a prime number above 4096"),
    ],
)
def test_refused(function, x, words):
    with pytest.raises(MlircError, match=words):
        import_torch(from_torch(Calls(function), (x,)))


def test_bins_of_reals_that_are_real_have_no_phase():
    """The mean and the highest frequency, of transforms as one product and of two factors."""
    given = [randn(3, n) for n in (1, 2, 12, 25, 50, 600)]
    spectra = [(lambda x: (torch.fft.rfft(x).angle(), torch.fft.rfft(x).imag), (x,)) for x in given]
    whole = (lambda x: torch.fft.fft(x).imag, (given[2],))
    spectrogram = (
        lambda x: torch.stft(x, 50, 13, 30, torch.ones(30), center=False, return_complex=True).angle(),
        (randn(211),),
    )
    check_together([*spectra, whole, spectrogram], levels=["tiles", "gpu"], kinds=["plain"])


def test_roots_of_unity_are_exact():
    for n in (1, 2, 3, 4, 8, 12, 50, 97):
        parts = torch.arange(-n, 2 * n)
        cos, sin = roots_of_unity(parts, n)
        angles = parts.double() * (2 * torch.pi / n)
        assert torch.allclose(cos, angles.cos(), atol=1e-14) and torch.allclose(sin, angles.sin(), atol=1e-14)
        assert torch.equal(sin[n : 2 * n], sin[:n]) and torch.equal(cos.flip(0)[:-1], cos[1:])
        assert torch.all(sin[2 * parts % n == 0] == 0) and torch.all(
            cos[(4 * parts % n == 0) & (2 * parts % n != 0)] == 0
        )
        assert torch.all(cos[6 * parts == n] == 0.5) and torch.all(sin[12 * parts == n] == 0.5)
