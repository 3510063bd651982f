//! Family (c): another exp, tanh or σ (A10).

use crate::kernels::functions;

engine_mutants! { Arithmetic
    "a10-exp-of-the-platform" ["A10"] "exp is the platform's single-precision one" {
        fn exp_all(&self, values: &mut [f32]) {
            values.iter_mut().for_each(|value| *value = value.exp());
        }
    }
    "a10-tanh-of-the-platform" ["A10"] "tanh is the platform's single-precision one" {
        fn tanh_all(&self, values: &mut [f32]) {
            values.iter_mut().for_each(|value| *value = value.tanh());
        }
    }
    "a10-sigmoid-in-f32" ["A10"] "sigma is 1/(1 + exp(-x)) in f32 steps" {
        fn sigmoid_all(&self, values: &mut [f32]) {
            values.iter_mut().for_each(|x| *x = 1.0 / (1.0 + functions::exp(-*x)));
        }
    }
    "a10-sigmoid-by-tanh" ["A10"] "sigma is (1 + tanh(x/2))/2, which is 0 for large negative x" {
        fn sigmoid_all(&self, values: &mut [f32]) {
            values.iter_mut().for_each(|x| *x = 0.5 + 0.5 * functions::tanh(0.5 * *x));
        }
    }
    "a10-tanh-by-quotient" ["A10"] "tanh is (1 - t)/(1 + t), which loses small arguments" {
        fn tanh_all(&self, values: &mut [f32]) {
            values.iter_mut().for_each(|x| {
                let t = functions::exp(-2.0 * x.abs());
                *x = ((1.0 - t) / (1.0 + t)).copysign(*x);
            });
        }
    }
    "a10-exp-flushes-subnormals" ["A10" "A12"] "exp gives zero below the normal range" {
        fn exp_all(&self, values: &mut [f32]) {
            functions::exp_all(values);
            let tiny = |value: &&mut f32| **value < f32::MIN_POSITIVE;
            values.iter_mut().filter(tiny).for_each(|value| *value = 0.0);
        }
    }
    "a10-exp-by-squaring" ["A10"] "exp is (1 + x/1024) to the power 1024" {
        fn exp_all(&self, values: &mut [f32]) {
            for value in values {
                *value = (1.0 + f64::from(*value).max(-1024.0) / 1024.0).powi(1024) as f32;
            }
        }
    }
}
