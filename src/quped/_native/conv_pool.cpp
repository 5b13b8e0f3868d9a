// Convolution, 2x2 max pooling and ReLU in one pass, and their gradients, for the narrow layers of small networks.
//
// Compiled for one layer and one machine: CHANNELS, FILTERS, HEIGHT, WIDTH, KERNEL and PADDING are given by the compiler's
// command line (build.py), so every loop has a known length. Two things make it fast. The forward pass keeps a few pixels
// times all filters in registers and never stores what pooling throws away. The backward pass knows that of each four
// outputs of the convolution at most one has a gradient, and touches only those.
//
// Within, an image is stored with its channels last, with its padding around it and LANES numbers behind it, so that a row
// of a patch is contiguous and may be read in whole vectors.

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

#ifdef __AVX512F__  // wide vectors pay where filters fill them; sums are the same, bit for bit
constexpr int LANES = FILTERS % 16 ? 8 : 16;
#else
constexpr int LANES = 8;
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

constexpr int up(int n) { return (n + LANES - 1) / LANES * LANES; }

constexpr int ROWS = HEIGHT + 2 * PADDING, ROW = (WIDTH + 2 * PADDING) * CHANNELS;
constexpr int OUT_ROWS = (ROWS - KERNEL + 1) / 2, OUT_COLUMNS = (ROW / CHANNELS - KERNEL + 1) / 2;
constexpr int OUT = OUT_ROWS * OUT_COLUMNS;
constexpr int PATCH_ROW = KERNEL * CHANNELS;
constexpr int IMAGE = ROWS * ROW + LANES;
constexpr int FILTERS_UP = up(FILTERS), PATCH_ROW_UP = up(PATCH_ROW);
constexpr uint8_t NONE = 4;  // the mark of an output without a gradient

vec load(const float *p) { return *reinterpret_cast<const loose *>(p); }
void store(float *p, vec v) { *reinterpret_cast<loose *>(p) = v; }

struct Strides { int64_t sample, channel, row, column; };

// Copies one sample, whatever its layout, to where the loops below want it. The border of `image` is zero already.
void take(const float *x, const Strides &s, float *image) {
  for (int h = 0; h < HEIGHT; h++)
    if (s.channel == 1 && s.column == CHANNELS)
      memcpy(image + (h + PADDING) * ROW + PADDING * CHANNELS, x + h * s.row, WIDTH * CHANNELS * sizeof(float));
    else for (int w = 0; w < WIDTH; w++) {
      float *to = image + (h + PADDING) * ROW + (w + PADDING) * CHANNELS;
      for (int c = 0; c < CHANNELS; c++) to[c] = x[c * s.channel + h * s.row + w * s.column];
    }
}

// The 2x2 maxima of N neighbouring pooled pixels for LANES filters, after ReLU, and which of the four was the largest.
template <int N>
void pooled(const float *corner, const float *weights, vec bias, float *y, uint8_t *which, int filters) {
  if (FILTERS % LANES == 0) filters = LANES;  // known to the compiler
  vec sum[2][2 * N];
  for (int r = 0; r < 2; r++)
    for (int q = 0; q < 2 * N; q++) sum[r][q] = bias;
  for (int k = 0; k < KERNEL; k++)
    for (int j = 0; j < PATCH_ROW; j++) {
      const vec w = load(weights + (k * PATCH_ROW + j) * FILTERS_UP);
      for (int r = 0; r < 2; r++)
        for (int q = 0; q < 2 * N; q++) sum[r][q] += corner[(r + k) * ROW + q * CHANNELS + j] * w;
    }
  for (int p = 0; p < N; p++) {
    vec best = sum[0][2 * p];
    ints index = {};
    for (int i = 1; i < 4; i++) {
      const vec other = sum[i / 2][2 * p + i % 2];
      const ints better = (other > best) | (other != other);  // the first of equals wins, and NaN always, as in PyTorch
      best = better ? other : best;
      index = better ? ints{} + i : index;
    }
    const bytes mark = __builtin_convertvector(best > 0.0f ? index : ints{} + int32_t(NONE), bytes);
    best = best <= 0.0f ? vec{} : best;
    memcpy(y + p * FILTERS, &best, filters * sizeof(float));
    if (which) memcpy(which + p * FILTERS, &mark, filters);
  }
}

}  // namespace

extern "C" {

// x [samples, CHANNELS, HEIGHT, WIDTH] with any strides, weights [FILTERS, CHANNELS, KERNEL, KERNEL], bias [FILTERS];
// y [samples, OUT_ROWS, OUT_COLUMNS, FILTERS], and `which` of the same shape, or null if no gradient will be asked for.
void forward(int64_t samples, const float *x, const int64_t *x_strides, const float *weights, const float *bias, float *y,
             uint8_t *which) {
  const Strides strides = {x_strides[0], x_strides[1], x_strides[2], x_strides[3]};
  std::vector<float> image(IMAGE), packed(KERNEL * PATCH_ROW * FILTERS_UP);
  vec start[FILTERS_UP / LANES] = {};
  memcpy(start, bias, FILTERS * sizeof(float));
  for (int f = 0; f < FILTERS; f++)
    for (int c = 0; c < CHANNELS; c++)
      for (int k = 0; k < KERNEL * KERNEL; k++)
        packed[(k * CHANNELS + c) * FILTERS_UP + f] = weights[(f * CHANNELS + c) * KERNEL * KERNEL + k];
  for (int64_t n = 0; n < samples; n++) {
    take(x + n * strides.sample, strides, image.data());
    for (int f = 0; f < FILTERS; f += LANES)
      for (int r = 0; r < OUT_ROWS; r++) {
        int q = 0;
        const auto compute = [&](auto pixels) {
          const int64_t out = ((n * OUT_ROWS + r) * OUT_COLUMNS + q) * FILTERS + f;
          pixels(&image[2 * r * ROW + 2 * q * CHANNELS], &packed[f], start[f / LANES], y + out, which ? which + out : which,
                 FILTERS - f < LANES ? FILTERS - f : LANES);
        };
        for (; q + 2 <= OUT_COLUMNS; q += 2) compute(pooled<2>);
        if (q < OUT_COLUMNS) compute(pooled<1>);
      }
  }
}

// The gradients by weights, bias and, unless null, x, given that by y: dw and db like weights and bias, dx
// [samples, HEIGHT, WIDTH, CHANNELS]. They are added up in the order of the samples.
void backward(int64_t samples, const float *x, const int64_t *x_strides, const float *weights, const uint8_t *which,
              const float *dy, const int64_t *dy_strides, float *dx, float *dw, float *db) {
  const Strides strides = {x_strides[0], x_strides[1], x_strides[2], x_strides[3]};
  constexpr int VECS = PATCH_ROW_UP / LANES;
  std::vector<float> image(IMAGE), by_image(IMAGE), packed(FILTERS * KERNEL * PATCH_ROW_UP), by_packed(packed.size());
  for (int f = 0; f < FILTERS; f++)
    for (int c = 0; c < CHANNELS; c++)
      for (int k = 0; k < KERNEL; k++)
        for (int l = 0; l < KERNEL; l++)
          packed[(f * KERNEL + k) * PATCH_ROW_UP + l * CHANNELS + c] = weights[((f * CHANNELS + c) * KERNEL + k) * KERNEL + l];
  memset(db, 0, FILTERS * sizeof(float));
  for (int64_t n = 0; n < samples; n++) {
    take(x + n * strides.sample, strides, image.data());
    if (dx) memset(by_image.data(), 0, IMAGE * sizeof(float));
    for (int f = 0; f < FILTERS; f++) {
      int place[OUT], count = 0;  // where outputs have a gradient, and which
      float grad[OUT];
      const uint8_t *mark = which + n * OUT * FILTERS + f;
      const float *g = dy + n * dy_strides[0] + f * dy_strides[1];
      for (int r = 0; r < OUT_ROWS; r++)
        for (int q = 0; q < OUT_COLUMNS; q++, mark += FILTERS) {
          place[count] = (2 * r + (*mark >> 1)) * ROW + (2 * q + (*mark & 1)) * CHANNELS;
          grad[count] = g[r * dy_strides[2] + q * dy_strides[3]];
          count += *mark != NONE;
        }
      for (int i = 0; i < count; i++) db[f] += grad[i];
      const float *w = &packed[f * KERNEL * PATCH_ROW_UP];
      float *by_w = &by_packed[f * KERNEL * PATCH_ROW_UP];
      constexpr int TOGETHER = VECS > 10 ? 1 : 10 / VECS;  // rows of the kernel whose sums fit into registers
      for (int first = 0; first < KERNEL; first += TOGETHER) {
        const int rows = first + TOGETHER <= KERNEL ? TOGETHER : KERNEL - first;
        const auto add = [&](auto fixed) {
          constexpr int R = decltype(fixed)::value;
          vec sum[R][VECS];
          for (int k = 0; k < R; k++)
            for (int v = 0; v < VECS; v++) sum[k][v] = load(by_w + (first + k) * PATCH_ROW_UP + v * LANES);
          for (int i = 0; i < count; i++) {
            const float *patch = image.data() + place[i] + first * ROW;
            for (int k = 0; k < R; k++)
              for (int v = 0; v < VECS; v++) sum[k][v] += grad[i] * load(patch + k * ROW + v * LANES);
          }
          for (int k = 0; k < R; k++)
            for (int v = 0; v < VECS; v++) store(by_w + (first + k) * PATCH_ROW_UP + v * LANES, sum[k][v]);
        };
        constexpr int FULL = TOGETHER < KERNEL ? TOGETHER : KERNEL, REST = KERNEL % FULL ? KERNEL % FULL : FULL;
        if (rows == FULL) add(std::integral_constant<int, FULL>());
        else add(std::integral_constant<int, REST>());
      }
      if (dx)
        for (int i = 0; i < count; i++) {
          float *patch = by_image.data() + place[i];
          for (int k = 0; k < KERNEL; k++)
            for (int v = 0; v < VECS; v++) {
              float *at = patch + k * ROW + v * LANES;
              store(at, load(at) + grad[i] * load(w + k * PATCH_ROW_UP + v * LANES));
            }
        }
    }
    if (dx)
      for (int h = 0; h < HEIGHT; h++)
        memcpy(dx + (n * HEIGHT + h) * WIDTH * CHANNELS, &by_image[(h + PADDING) * ROW + PADDING * CHANNELS],
               WIDTH * CHANNELS * sizeof(float));
  }
  for (int f = 0; f < FILTERS; f++)
    for (int c = 0; c < CHANNELS; c++)
      for (int k = 0; k < KERNEL; k++)
        for (int l = 0; l < KERNEL; l++)
          dw[((f * CHANNELS + c) * KERNEL + k) * KERNEL + l] = by_packed[(f * KERNEL + k) * PATCH_ROW_UP + l * CHANNELS + c];
}
}
