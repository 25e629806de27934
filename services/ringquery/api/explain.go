package api

import (
	"context"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/explain"
)

// Explain implements the method of the same name.
func (s *Service) Explain(ctx context.Context, req *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	return answer(ctx, s, func() (*pb.ExplainResponse, error) {
		q, err := explainQuestion(req)
		if err != nil {
			return nil, err
		}

		q.Now = s.Clock.Now()

		return explain.Answer(ctx, s.Rings, q)
	})
}

// explainQuestion returns what a valid request asks.
func explainQuestion(req *pb.ExplainRequest) (explain.Question, error) {
	var v violations
	v.optional("ring", req.GetRing(), validateRing)

	return explain.Question{Ring: req.GetRing(), Object: v.object(req.GetObject())}, v.err()
}
