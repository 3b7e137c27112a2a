/* streamed.h - checks the engine with streamed weights, on any device; for test_streamed.c and
 * test_streamed_emulated.c. */
#ifndef TESTS_ENGINE_STREAMED_H
#define TESTS_ENGINE_STREAMED_H

/* Runs the first n_plans of five plans over a context of n_stored tokens, a multiple of 64, and
 * n_new new tokens: with resident weights, with half of the layers streamed, and with all.  Fails
 * the test if tokens or logits differ. */
void streamed_plans_equal(const char *device, const char *model, const char *weights,
                          int n_stored, int n_new, int n_plans);

#endif
