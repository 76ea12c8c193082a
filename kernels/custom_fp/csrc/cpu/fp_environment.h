// Round-to-nearest and gradual underflow for the life of an object, whatever the calling thread had set
// (torch.set_flush_denormal, for one). A thread starts with its parent's settings.
#pragma once

#include <cfenv>

namespace custom_fp {

class FpEnvironment {
    std::fenv_t saved_;

public:
    FpEnvironment() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);  // clears x86's FTZ and DAZ, AArch64's FZ
    }
    ~FpEnvironment() { std::fesetenv(&saved_); }
    FpEnvironment(const FpEnvironment&) = delete;
    FpEnvironment& operator=(const FpEnvironment&) = delete;
};

// The direction that operations round in, for the life of an object. Compilers take it to be to nearest and move
// operations past it: what is to be rounded so stands in a function that is not inlined.
class RoundingDirection {
    int saved_;

public:
    explicit RoundingDirection(int direction) : saved_(std::fegetround()) { std::fesetround(direction); }
    ~RoundingDirection() { std::fesetround(saved_); }
    RoundingDirection(const RoundingDirection&) = delete;
    RoundingDirection& operator=(const RoundingDirection&) = delete;
};

}  // namespace custom_fp
