module github.com/clusterring/clusterring/services/internal/celcheck

go 1.26.0
