/* @ABOUT@
 *
 *     void @NAME@_predict(const float *input, float *scores);
 *
 * input   @INPUTS@ numbers: @SHAPE@
 * scores  @SCORES@ numbers, one for each class@CLASSES@; the largest one names the class
 *
 * C99 without a library: no heap, no recursion, no other file.
 * Constant data: @FLASH@ bytes. Working memory: @RAM@ bytes, static, so one call at a time.
 * Arithmetic is float32: only the stored weights are small.
 */
#include <stdint.h>

@ARRAYS@

/* A stage turns an image into an image: it convolves, scales, shifts, applies ReLU and pools.
 * A linear layer is a convolution whose kernel is as large as its image. */
typedef struct {
@FIELDS@
} stage;

static const stage stages[@COUNT@] = {
@STAGES@
};

/* The numbers of stage s; those that all stages have in common are constants.
 *
 * WEIGHTS: codes of BITS bits, lowest first, which stand for CENTERS; floats where BITS is 0; or none.
 * CHANNELS, HEIGHT, WIDTH: the input. FILTERS, ROWS, COLUMNS: before pooling. OUT_ROWS, OUT_COLUMNS: behind it.
 * KERNEL, STRIDE, PADDING, DILATION, GROUPS: the convolution. WINDOW, STEP, MARGIN: the pooling.
 * CENTERS_PER_FILTER: 0 where all filters share their centers. */
@MACROS@

@BUFFERS@

/* Unpack the weights of a filter. A code may cross two bytes. */
static void unpack(const stage *s, uint32_t filter, uint32_t count) {
    const uint8_t *codes = WEIGHTS;
    const float *centers = CENTERS + filter * CENTERS_PER_FILTER;
    uint32_t at = filter * count * BITS;
    for (uint32_t i = 0; i < count; i++, at += BITS) {
        const uint32_t two = codes[at >> 3] | (uint32_t)codes[(at >> 3) + 1] << 8;
        unpacked[i] = centers[two >> (at & 7) & ((1u << BITS) - 1)];
    }
}

/* Return a pixel before pooling. Rows and columns left of the image wrap around to large numbers. */
static float pixel(const stage *s, const float *in, const float *weights, uint32_t filter, uint32_t y, uint32_t x) {
    float sum = 0;
    if (CONVOLVES) {
        in += filter / (FILTERS / GROUPS) * (CHANNELS / GROUPS) * HEIGHT * WIDTH;
        for (uint32_t c = 0; c < CHANNELS / GROUPS; c++, in += HEIGHT * WIDTH)
            for (uint32_t i = 0; i < KERNEL_Y; i++)
                for (uint32_t j = 0; j < KERNEL_X; j++, weights++) {
                    const uint32_t row = y * STRIDE_Y + i * DILATION_Y - PADDING_Y;
                    const uint32_t column = x * STRIDE_X + j * DILATION_X - PADDING_X;
                    if (!PADDED || (row < HEIGHT && column < WIDTH)) sum += *weights * in[row * WIDTH + column];
                }
    } else
        sum = in[(filter * HEIGHT + y) * WIDTH + x];
    if (SCALE) sum *= SCALE[filter];
    if (SHIFT) sum += SHIFT[filter];
    return RELU && sum < 0 ? 0 : sum;
}

/* Compute a stage: each pixel of its output is the maximum, or the mean, of a window of pixels. */
static void run(const stage *s, const float *in, float *out) {
    const uint32_t count = CHANNELS / GROUPS * KERNEL_Y * KERNEL_X;
    for (uint32_t filter = 0; filter < FILTERS; filter++) {
        const float *weights = WEIGHTS;
        if (BITS) {
            unpack(s, filter, count);
            weights = unpacked;
        } else if (CONVOLVES)
            weights += filter * count;
        for (uint32_t y = 0; y < OUT_ROWS; y++)
            for (uint32_t x = 0; x < OUT_COLUMNS; x++) {
                float pooled = 0;
                uint32_t seen = 0;
                for (uint32_t i = 0; i < WINDOW_Y; i++)
                    for (uint32_t j = 0; j < WINDOW_X; j++) {
                        const uint32_t row = y * STEP_Y + i - MARGIN_Y;
                        const uint32_t column = x * STEP_X + j - MARGIN_X;
                        if (MARGINS && (row >= ROWS || column >= COLUMNS)) continue;
                        const float value = pixel(s, in, weights, filter, row, column);
                        pooled = MEAN ? pooled + value : seen && pooled > value ? pooled : value;
                        seen++;
                    }
                *out++ = MEAN ? pooled / (float)seen : pooled;
            }
    }
}

void @NAME@_predict(const float *input, float *scores);
void @NAME@_predict(const float *input, float *scores) {
    for (uint32_t i = 0; i < @COUNT@; i++) {
        float *out = i == @COUNT@ - 1 ? scores : i % 2 ? odd : even;
        run(&stages[i], input, out);
        input = out;
    }
}
