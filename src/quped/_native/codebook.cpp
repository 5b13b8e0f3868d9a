// Weights and the few centers that they belong to: finding the center of each, placing it there, adding up by center.
// Compiled for a number of CENTERS. Weights are [groups, size], centers [groups, CENTERS], sorted.

#include <cstdint>

namespace {

constexpr int LANES = 8;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1)));

ints load(const uint8_t *p) { return __builtin_convertvector(*reinterpret_cast<const bytes *>(p), ints); }

}  // namespace

extern "C" {

// The number of borders, half-way between neighbouring centers, that lie below each weight.
void nearest(int64_t groups, int64_t size, const float *weights, const float *centers, uint8_t *found) {
  for (int64_t g = 0; g < groups; g++, centers += CENTERS, weights += size, found += size) {
    float borders[CENTERS];
    for (int b = 0; b < CENTERS - 1; b++) borders[b] = (centers[b + 1] + centers[b]) / 2;
    for (int64_t i = 0; i < size; i++) {
      int32_t below = 0;
      for (int b = 0; b < CENTERS - 1; b++) below += weights[i] > borders[b];
      found[i] = uint8_t(below);
    }
  }
}

// For each weight the center that it is assigned to.
void place(int64_t groups, int64_t size, const float *centers, const uint8_t *assignment, float *placed) {
  for (int64_t g = 0; g < groups; g++, centers += CENTERS, assignment += size, placed += size) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
      const ints mine = load(assignment + i);
      vec value = {};
      for (int c = 0; c < CENTERS; c++) value = mine == c ? vec{} + centers[c] : value;
      *reinterpret_cast<loose *>(placed + i) = value;
    }
    for (; i < size; i++) placed[i] = centers[assignment[i]];
  }
}

// For each center the sum of the values that are assigned to it: eight partial sums, added in one order.
void collect(int64_t groups, int64_t size, const float *values, const uint8_t *assignment, float *sums) {
  for (int64_t g = 0; g < groups; g++, sums += CENTERS, values += size, assignment += size) {
    vec partial[CENTERS] = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
      const vec value = *reinterpret_cast<const loose *>(values + i);
      const ints mine = load(assignment + i);
      for (int c = 0; c < CENTERS; c++) partial[c] += mine == c ? value : vec{};
    }
    for (int c = 0; c < CENTERS; c++) {
      sums[c] = 0;
      for (int lane = 0; lane < LANES; lane++) sums[c] += partial[c][lane];
    }
    for (; i < size; i++) sums[assignment[i]] += values[i];
  }
}
}
