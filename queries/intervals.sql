-- 95 % intervals as macros: shares over requests, ratios over request groups.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -cmd ".read .../queries/intervals.sql"
--
-- Requests are what is independent: tokens of one request are alike. A low or
-- high that is NULL rests on too few requests to tell.

-- The share of the beta law of a, b at or below x. Source: the continued
-- fraction of DLMF 8.17.22, from its 40th term inwards.
CREATE OR REPLACE MACRO beta_tail(x, a, b) AS
  exp(
    a * ln(x) + b * ln(1 - x) + lgamma(a + b) - lgamma(a) - lgamma(b)
  ) / a / (1 + list_reduce(
    [0.0::DOUBLE] || [m::DOUBLE FOR m IN range(40, 0, -1)],
    lambda rest, m:
      -(a + m - 1) * (a + b + m - 1) * x
      / ((a + 2 * m - 2) * (a + 2 * m - 1))
      / (1 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / (1 + rest))
  ));
CREATE OR REPLACE MACRO beta_cdf(x, a, b) AS
  CASE WHEN x <= 0 THEN 0.0 WHEN x >= 1 THEN 1.0
  WHEN x < (a + 1) / (a + b + 2) THEN beta_tail(x, a, b)
  ELSE 1 - beta_tail(1 - x, b, a) END;

-- x at which the beta law of a, b has the share p at or below it, by bisection
-- of its logit.
CREATE OR REPLACE MACRO logistic(y) AS 1 / (1 + exp(-y));
CREATE OR REPLACE MACRO beta_quantile(p, a, b) AS
  logistic(list_reduce(
    [0.0::DOUBLE] || [pow(2.0, 6 - i)::DOUBLE FOR i IN range(36)],
    lambda y, step:
      y + CASE WHEN beta_cdf(logistic(y), a, b) < p THEN step ELSE -step END
  ));

-- a, b of the beta law with the mean and the variance of the fraction whose
-- requests are reweighted by a Dirichlet law, after one was added that has the
-- fraction added_frac and the size Σ n² / Σ n.
CREATE OR REPLACE MACRO beta_of(mean, variance) AS {
  'a': mean * (mean * (1 - mean) / variance - 1),
  'b': (1 - mean) * (mean * (1 - mean) / variance - 1)
};
CREATE OR REPLACE MACRO beta_law(sums, added_frac) AS
  list_transform(
    [{
      'size': sums.nn / sums.n, 'added': added_frac * sums.nn / sums.n,
      'total': sums.n + sums.nn / sums.n,
      'mean': (sums.x + added_frac * sums.nn / sums.n)
        / (sums.n + sums.nn / sums.n)
    }],
    lambda t: beta_of(t.mean,
      (
        sums.xx - 2 * t.mean * sums.xn + t.mean * t.mean * sums.nn
        + (t.added - t.mean * t.size) * (t.added - t.mean * t.size)
      ) / (t.total * t.total) * (sums.requests + 1) / (sums.requests + 2))
  )[1];

-- What fraction_low and fraction_high need of a stratum's requests: an
-- aggregate over rows of (events, trials), one per request, both weighted.
CREATE OR REPLACE MACRO request_sums(events, trials) AS {
  'requests': count(*) FILTER (trials > 0),
  'affected': count(*) FILTER (events > 0),
  'n': sum(trials), 'nn': sum(trials * trials),
  'x': sum(events), 'xx': sum(events * events), 'xn': sum(events * trials),
  'worst': max(events / nullif(trials, 0))
};

-- 95 % interval of Σ events / Σ trials over the traffic, not over this sample
-- alone: requests are what is independent. The method of kvtrace check: the
-- bound of Gaffke (2005), beta-matched, with an adaptive worst request. NULL:
-- fewer than 3 requests say nothing of the low end, fewer than 5 of the high.
CREATE OR REPLACE MACRO fraction_low(sums) AS
  CASE WHEN sums.requests >= 3 AND sums.x <= 0 THEN 0.0
  WHEN sums.requests >= 3 THEN list_transform(
    [beta_law(sums, 0.0)], lambda law: beta_quantile(0.025, law.a, law.b)
  )[1] END;
CREATE OR REPLACE MACRO fraction_high(sums) AS
  CASE WHEN sums.requests >= 5 AND sums.x >= sums.n THEN 1.0
  WHEN sums.requests >= 5 THEN list_transform(
    [beta_law(sums,
      (sums.affected * sums.worst + 1) / (sums.affected + 1))],
    lambda law: beta_quantile(0.975, law.a, law.b)
  )[1] END;

-- Half of a 95 % interval of a logarithm, from what leaving out each of 8 to
-- 16 groups of requests changes in it: the delete-a-group jackknife with the t
-- law of G - 1 degrees of freedom. NULL: fewer groups.
CREATE OR REPLACE MACRO jackknife_half_width(changes) AS
  CASE WHEN len(changes) >= 8 THEN
    -- Student's t at 0.975 for 7 to 15 degrees of freedom.
    [
      2.364624251592784, 2.306004135204166, 2.262157162798205,
      2.228138851986274, 2.200985160091639, 2.1788128296672284,
      2.1603686564627913, 2.144786687917804, 2.131449545559776
    ][len(changes) - 7] * sqrt(
      (len(changes) - 1) / len(changes) * list_sum([c * c FOR c IN changes])
    )
  END;

-- 95 % interval of Σ numerators / Σ denominators, each a list of one sum per
-- request group: the delete-a-group jackknife on the logarithm, with the t law
-- of G - 1 degrees of freedom. NULL: fewer than 8 groups have a denominator,
-- or fewer than three quarters of these a numerator: too few to tell.
CREATE OR REPLACE MACRO log_half_width(numerators, denominators) AS
  list_transform(
    [{
      'above': list_sum(numerators), 'below': list_sum(denominators),
      'used': len([d FOR d IN denominators IF d > 0]),
      'hit': len([n FOR n IN numerators IF n > 0]),
      'pairs': list_zip(numerators, denominators)
    }],
    lambda t:
      CASE WHEN t.used >= 8 AND t.hit >= 0.75 * t.used
      THEN jackknife_half_width([
        ln((t.above - pair[1]) / (t.below - pair[2])) - ln(t.above / t.below)
        FOR pair IN t.pairs IF pair[2] > 0
      ]) END
  )[1];
CREATE OR REPLACE MACRO ratio_low(numerators, denominators) AS
  list_sum(numerators) / list_sum(denominators)
  * exp(-log_half_width(numerators, denominators));
CREATE OR REPLACE MACRO ratio_high(numerators, denominators) AS
  list_sum(numerators) / list_sum(denominators)
  * exp(log_half_width(numerators, denominators));
