module github.com/clusterring/clusterring/pkg

go 1.26.0
