# Checks of what the page says about the authors' code, in R (base packages only; a minute).
#
#     git clone https://github.com/davidruegamer/generalized_orthogonalization authors
#     Rscript studies/verify_authors.R authors
#
# Runs lines of their files, by file and line, and prints one line for each finding.
folder <- commandArgs(trailingOnly = TRUE)[1]
read <- function(name) readLines(file.path(folder, name), warn = FALSE)
run <- function(lines) eval(parse(text = lines), envir = globalenv())
say <- function(...) cat(..., "\n")
functions <- read("simulations/common/functions.R")
run(functions[!grepl("^library", functions)])
scoring <- fisher_scoring_glm_corr  # that of Table 1; plot_optim.R has one of its own
script <- read("plot_optim.R")
run(script[42:55])  # the data of Figure 1

say("# lagrangianConstr (simulations/common/functions.R:199) on the data of Figure 1")
seen <- NULL  # its own objective and gradient, taken by a tracing optim()
optim <- function(par, fn, gr, ...) { seen <<- list(fn = fn, gr = gr); stats::optim(par, fn, gr, ...) }
params <- lagrangianConstr(matrix(x), Z_with_intercept, y, "binomial", what = "params")
at <- c(1, 0.5, 0.3, -0.5)
numeric <- sapply(seq_along(at), function(j) {
  e <- replace(numeric(length(at)), j, 1e-6)
  (seen$fn(at + e) - seen$fn(at - e)) / 2e-6
})
say("gradient given to BFGS, largest error relative to the numerical one:",
    max(abs(seen$gr(at) - numeric) / pmax(1, abs(numeric))))
say("lambda at the start", exp(1), "and at the end", exp(params[1]), "(it is minimised over, not maximised)")
say("correlation left:", cor(plogis(Z_with_intercept %*% params[-1]), x))

say("# Figure 1 (plot_optim.R:6, :54, :80)")
run(script[6:39])
for (steps in c(110, 400, 1000)) {
  path <- fisher_scoring_glm_corr(Q, Z_with_intercept, y, max_iter = steps)
  say("projected Fisher scoring,", steps, "steps:", cor(plogis(Z_with_intercept %*% path[[steps + 1]]), x))
}
say("classical, no intercept:", cor(fitted(glm(y ~ -1 + Zcor, family = binomial)), x))
Qi <- qr.Q(qr(cbind(1, x)))
Zi <- Z - Qi %*% crossprod(Qi, Z)
say("classical, with intercept:", cor(fitted(glm(y ~ Zi, family = binomial)), x))

say("# Table 1's iteration (simulations/common/functions.R:113) on the data of Figure 1")
invisible(utils::capture.output(gamma <- scoring(qr.Q(qr(cbind(1, x))), Z_with_intercept, y)))
say("correlation left:", cor(plogis(Z_with_intercept %*% gamma), x))

say("# Tables 1 and 4: test features (applications/MIMIC/analysis.R:65, faces/analysis.R:37), same rows twice")
set.seed(1)
emb <- matrix(rnorm(200 * 40), 200) %*% matrix(rnorm(1600), 40)
emb_svd <- svd(emb)
one <- emb %*% emb_svd$v[, 1:10]
two <- tcrossprod(emb, emb_svd$v[1:10, ])
say("training rows, first component: correlation of the two formulas:", cor(one[, 1], two[, 1]))

say("# Figure 4: influence (applications/MNIST/analysis.R:174)")
train_red <- rep(0:1, c(60, 40))
yhat_train <- matrix(rexp(100 * 5) + 3 * train_red, 100)
before <- max(abs(coef(lm(yhat_train ~ train_red))[2, ]))
run(read("applications/MNIST/analysis.R")[174:175])
say("largest effect of red on any responses, before:", before, "after these lines:",
    max(abs(coef(lm(yhat_train_c ~ train_red))[2, ])))

say("# Table 2 (applications/adult_income/analysis.R)")
here <- setwd(file.path(folder, "applications/adult_income"))
adult <- readLines("analysis.R", warn = FALSE)
run(adult[5:14])
data <- data[data$native_country == "United-States", ]  # line 16, without dplyr
run(adult[19:47])
run(adult[54:56])
say("C^h, effects:", round(coef(nonlinear_proj_model)[-1], 3))
run(adult[62:72])
say("Xu, effects:", round(coef(eval_model_xu)[-1], 3), "; predictions that are not the label:",
    sum(yhatc_prob_xu != data$income))
setwd(here)

say("# check_theorem_piecew.R: X is 5 x 5, so its projection P removes everything")
run(read("check_theorem_piecew.R"))
say("largest entry of P:", max(abs(P_X_bot)))
X <- matrix(rnorm(50), 10)  # the same check with ten rows
Z_c <- (diag(10) - X %*% solve(crossprod(X)) %*% t(X)) %*% matrix(rnorm(50), 10)
a <- Z_c %*% gamma
b <- X %*% beta
say("with ten rows: a'b =", signif(sum(a * b), 2), "; sum of the four terms =",
    signif(sum(h(a) * h(b) + h(-a) * h(b) + h(a) * h(-b) + h(-a) * h(-b)), 3))
