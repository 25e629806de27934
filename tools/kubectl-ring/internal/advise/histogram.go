package advise

import (
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/queueing"
)

// values are what a histogram has observed.
type values struct {
	count, sum float64
	// fine reports whether the buckets are those of a native histogram: about 10 % wide.
	fine bool
	// buckets are the values by interval, only with counts above 0.
	buckets []queueing.Piece
}

// mean returns the mean of the values. 0: there are none.
func (v values) mean() float64 {
	if v.count == 0 {
		return 0
	}

	return v.sum / v.count
}

// distribution returns the distribution of the values.
func (v values) distribution() queueing.Distribution {
	return queueing.NewDistribution(v.buckets, v.mean())
}

// observed returns what a histogram has observed since an earlier reading. before is nil if there was none.
func observed(before, after *dto.Histogram) values {
	if before != nil && after.GetSampleCount() < before.GetSampleCount() {
		before = nil // reset; native histograms are, from time to time
	}

	v := values{
		count: float64(after.GetSampleCount() - before.GetSampleCount()), sum: after.GetSampleSum() - before.GetSampleSum(),
		fine: after.Schema != nil && len(after.GetPositiveSpan()) > 0,
	}

	if v.fine {
		v.buckets = native(before, after)
	} else {
		v.buckets = classic(before, after)
	}

	return v
}

// classic returns the values by bucket with upper bounds.
func classic(before, after *dto.Histogram) []queueing.Piece {
	earlier := map[float64]uint64{}
	for _, b := range before.GetBucket() {
		earlier[b.GetUpperBound()] = b.GetCumulativeCount()
	}

	var (
		pieces []queueing.Piece
		low    float64
		below  uint64
	)

	bounds := after.GetBucket()
	if len(bounds) == 0 || !math.IsInf(bounds[len(bounds)-1].GetUpperBound(), 1) {
		count := after.GetSampleCount()
		earlier[math.Inf(1)] = before.GetSampleCount()
		infinite := math.Inf(1)
		bounds = append(slices.Clip(bounds), &dto.Bucket{UpperBound: &infinite, CumulativeCount: &count})
	}

	for _, b := range bounds {
		upTo := b.GetCumulativeCount() - min(earlier[b.GetUpperBound()], b.GetCumulativeCount())
		if upTo > below {
			pieces = append(pieces, queueing.Piece{From: max(low, 0), To: max(b.GetUpperBound(), 0), Weight: float64(upTo - below)})
			below = upTo
		}

		low = b.GetUpperBound()
	}

	return pieces
}

// native returns the values by exponential bucket. If the resolution has changed, the lower one counts.
func native(before, after *dto.Histogram) []queueing.Piece {
	schema := after.GetSchema()
	if before != nil && before.Schema != nil {
		schema = min(schema, before.GetSchema())
	}

	counts := exponential(after, schema)
	for i, n := range exponential(before, schema) {
		counts[i] -= n
	}

	factor := math.Exp2(-float64(schema)) // of the exponents of bounds
	pieces := []queueing.Piece{{To: after.GetZeroThreshold(), Weight: float64(after.GetZeroCount()) - float64(before.GetZeroCount())}}

	for i, n := range counts {
		pieces = append(pieces, queueing.Piece{From: math.Exp2(float64(i-1) * factor), To: math.Exp2(float64(i) * factor), Weight: float64(n)})
	}

	positive := pieces[:0]
	for _, p := range pieces {
		if p.Weight > 0 {
			positive = append(positive, p)
		}
	}

	return positive
}

// exponential returns the counts of the positive buckets of a native histogram, by index, at a resolution that is at most its own.
func exponential(h *dto.Histogram, schema int32) map[int32]int64 {
	counts := map[int32]int64{}
	if h == nil || h.Schema == nil {
		return counts
	}

	var (
		index int32
		count int64
		next  int
	)

	shift := max(h.GetSchema()-schema, 0)
	deltas := h.GetPositiveDelta()

	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()

		for range span.GetLength() {
			if next == len(deltas) {
				return counts // the page contradicts itself
			}

			count += deltas[next]
			next++
			// A bucket of the lower resolution ends where the last of its 2^shift buckets ends.
			counts[(index-1)>>shift+1] += count
			index++
		}
	}

	return counts
}

// observedSince adds up what the selected series of a histogram have observed since an earlier page.
func observedSince(before, after Page, name string, selected match) values {
	var total values

	earlier := map[string]*dto.Histogram{}

	before.series(name, selected, func(m *dto.Metric, _ map[string]string) { earlier[key(m)] = m.GetHistogram() })
	after.series(name, selected, func(m *dto.Metric, _ map[string]string) {
		if m.Histogram != nil {
			total = total.plus(observed(earlier[key(m)], m.GetHistogram()))
		}
	})

	return total
}

// key returns a text that identifies a series of a metric.
func key(m *dto.Metric) string {
	var text strings.Builder
	for _, pair := range m.GetLabel() {
		text.WriteString(pair.GetName() + "\x00" + pair.GetValue() + "\x00")
	}

	return text.String()
}

// plus returns the values of both. Buckets may overlap then.
func (v values) plus(other values) values {
	switch {
	case v.count == 0:
		return other
	case other.count == 0:
		return v
	default:
		return values{v.count + other.count, v.sum + other.sum, v.fine && other.fine, append(slices.Clip(v.buckets), other.buckets...)}
	}
}
