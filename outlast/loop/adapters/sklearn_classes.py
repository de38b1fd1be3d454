"""The classes of scikit-learn and XGBoost that a checkpoint may name, by their modules.

A restore imports these modules and builds these classes, and no others. A test compares the list
with the locked version of scikit-learn.
"""

ESTIMATORS: dict[str, str] = {
    "sklearn.base": "BaseEstimator",
    "sklearn.calibration": "CalibratedClassifierCV _SigmoidCalibration _TemperatureScaling",
    "sklearn.cluster._affinity_propagation": "AffinityPropagation",
    "sklearn.cluster._agglomerative": "AgglomerativeClustering FeatureAgglomeration",
    "sklearn.cluster._bicluster": "BaseSpectral SpectralBiclustering SpectralCoclustering",
    "sklearn.cluster._birch": "Birch",
    "sklearn.cluster._bisect_k_means": "BisectingKMeans",
    "sklearn.cluster._dbscan": "DBSCAN",
    "sklearn.cluster._hdbscan.hdbscan": "HDBSCAN",
    "sklearn.cluster._kmeans": "KMeans MiniBatchKMeans _BaseKMeans",
    "sklearn.cluster._mean_shift": "MeanShift",
    "sklearn.cluster._optics": "OPTICS",
    "sklearn.cluster._spectral": "SpectralClustering",
    "sklearn.compose._column_transformer": "ColumnTransformer",
    "sklearn.compose._target": "TransformedTargetRegressor",
    "sklearn.covariance._elliptic_envelope": "EllipticEnvelope",
    "sklearn.covariance._empirical_covariance": "EmpiricalCovariance",
    "sklearn.covariance._graph_lasso": "BaseGraphicalLasso GraphicalLasso GraphicalLassoCV",
    "sklearn.covariance._robust_covariance": "MinCovDet",
    "sklearn.covariance._shrunk_covariance": "LedoitWolf OAS ShrunkCovariance",
    "sklearn.cross_decomposition._pls": "CCA PLSCanonical PLSRegression PLSSVD _PLS",
    "sklearn.decomposition._base": "_BasePCA",
    "sklearn.decomposition._dict_learning": (
        "DictionaryLearning MiniBatchDictionaryLearning SparseCoder"
    ),
    "sklearn.decomposition._factor_analysis": "FactorAnalysis",
    "sklearn.decomposition._fastica": "FastICA",
    "sklearn.decomposition._incremental_pca": "IncrementalPCA",
    "sklearn.decomposition._kernel_pca": "KernelPCA",
    "sklearn.decomposition._lda": "LatentDirichletAllocation",
    "sklearn.decomposition._nmf": "MiniBatchNMF NMF _BaseNMF",
    "sklearn.decomposition._pca": "PCA",
    "sklearn.decomposition._sparse_pca": "MiniBatchSparsePCA SparsePCA _BaseSparsePCA",
    "sklearn.decomposition._truncated_svd": "TruncatedSVD",
    "sklearn.discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "sklearn.dummy": "DummyClassifier DummyRegressor",
    "sklearn.ensemble._bagging": "BaggingClassifier BaggingRegressor BaseBagging",
    "sklearn.ensemble._base": "BaseEnsemble _BaseHeterogeneousEnsemble",
    "sklearn.ensemble._forest": (
        "BaseForest ExtraTreesClassifier ExtraTreesRegressor ForestClassifier ForestRegressor "
        "RandomForestClassifier RandomForestRegressor RandomTreesEmbedding"
    ),
    "sklearn.ensemble._gb": (
        "BaseGradientBoosting GradientBoostingClassifier GradientBoostingRegressor"
    ),
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": (
        "BaseHistGradientBoosting HistGradientBoostingClassifier HistGradientBoostingRegressor"
    ),
    "sklearn.ensemble._iforest": "IsolationForest",
    "sklearn.ensemble._stacking": "StackingClassifier StackingRegressor _BaseStacking",
    "sklearn.ensemble._voting": "VotingClassifier VotingRegressor _BaseVoting",
    "sklearn.ensemble._weight_boosting": (
        "AdaBoostClassifier AdaBoostRegressor BaseWeightBoosting"
    ),
    "sklearn.feature_extraction._dict_vectorizer": "DictVectorizer",
    "sklearn.feature_extraction._hash": "FeatureHasher",
    "sklearn.feature_extraction.image": "PatchExtractor",
    "sklearn.feature_extraction.text": (
        "CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer"
    ),
    "sklearn.feature_selection._from_model": "SelectFromModel",
    "sklearn.feature_selection._rfe": "RFE RFECV",
    "sklearn.feature_selection._sequential": "SequentialFeatureSelector",
    "sklearn.feature_selection._univariate_selection": (
        "GenericUnivariateSelect SelectFdr SelectFpr SelectFwe SelectKBest SelectPercentile "
        "_BaseFilter"
    ),
    "sklearn.feature_selection._variance_threshold": "VarianceThreshold",
    "sklearn.frozen._frozen": "FrozenEstimator",
    "sklearn.gaussian_process._gpc": (
        "GaussianProcessClassifier _BinaryGaussianProcessClassifierLaplace"
    ),
    "sklearn.gaussian_process._gpr": "GaussianProcessRegressor",
    "sklearn.impute._base": "MissingIndicator SimpleImputer _BaseImputer",
    "sklearn.impute._iterative": "IterativeImputer",
    "sklearn.impute._knn": "KNNImputer",
    "sklearn.isotonic": "IsotonicRegression",
    "sklearn.kernel_approximation": (
        "AdditiveChi2Sampler Nystroem PolynomialCountSketch RBFSampler SkewedChi2Sampler"
    ),
    "sklearn.kernel_ridge": "KernelRidge",
    "sklearn.linear_model._base": "LinearModel LinearRegression MultiOutputLinearModel",
    "sklearn.linear_model._bayes": "ARDRegression BayesianRidge",
    "sklearn.linear_model._coordinate_descent": (
        "ElasticNet ElasticNetCV Lasso LassoCV LinearModelCV MultiTaskElasticNet "
        "MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV"
    ),
    "sklearn.linear_model._glm.glm": (
        "GammaRegressor PoissonRegressor TweedieRegressor _GeneralizedLinearRegressor"
    ),
    "sklearn.linear_model._huber": "HuberRegressor",
    "sklearn.linear_model._least_angle": "Lars LarsCV LassoLars LassoLarsCV LassoLarsIC",
    "sklearn.linear_model._logistic": "LogisticRegression LogisticRegressionCV",
    "sklearn.linear_model._omp": "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV",
    "sklearn.linear_model._passive_aggressive": (
        "PassiveAggressiveClassifier PassiveAggressiveRegressor"
    ),
    "sklearn.linear_model._perceptron": "Perceptron",
    "sklearn.linear_model._quantile": "QuantileRegressor",
    "sklearn.linear_model._ransac": "RANSACRegressor",
    "sklearn.linear_model._ridge": (
        "Ridge RidgeCV RidgeClassifier RidgeClassifierCV _BaseRidge _BaseRidgeCV "
        "_IdentityClassifier _IdentityRegressor _RidgeGCV"
    ),
    "sklearn.linear_model._stochastic_gradient": (
        "BaseSGD BaseSGDClassifier BaseSGDRegressor SGDClassifier SGDOneClassSVM SGDRegressor"
    ),
    "sklearn.linear_model._theil_sen": "TheilSenRegressor",
    "sklearn.manifold._classical_mds": "ClassicalMDS",
    "sklearn.manifold._isomap": "Isomap",
    "sklearn.manifold._locally_linear": "LocallyLinearEmbedding",
    "sklearn.manifold._mds": "MDS",
    "sklearn.manifold._spectral_embedding": "SpectralEmbedding",
    "sklearn.manifold._t_sne": "TSNE",
    "sklearn.mixture._base": "BaseMixture",
    "sklearn.mixture._bayesian_mixture": "BayesianGaussianMixture",
    "sklearn.mixture._gaussian_mixture": "GaussianMixture",
    "sklearn.model_selection._classification_threshold": (
        "BaseThresholdClassifier FixedThresholdClassifier TunedThresholdClassifierCV"
    ),
    "sklearn.model_selection._search": "BaseSearchCV GridSearchCV RandomizedSearchCV",
    "sklearn.model_selection._search_successive_halving": (
        "BaseSuccessiveHalving HalvingGridSearchCV HalvingRandomSearchCV"
    ),
    "sklearn.multiclass": (
        "OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier _ConstantPredictor"
    ),
    "sklearn.multioutput": (
        "ClassifierChain MultiOutputClassifier MultiOutputRegressor RegressorChain _BaseChain "
        "_MultiOutputEstimator"
    ),
    "sklearn.naive_bayes": (
        "BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB _BaseDiscreteNB _BaseNB"
    ),
    "sklearn.neighbors._base": "NeighborsBase",
    "sklearn.neighbors._classification": "KNeighborsClassifier RadiusNeighborsClassifier",
    "sklearn.neighbors._graph": "KNeighborsTransformer RadiusNeighborsTransformer",
    "sklearn.neighbors._kde": "KernelDensity",
    "sklearn.neighbors._lof": "LocalOutlierFactor",
    "sklearn.neighbors._nca": "NeighborhoodComponentsAnalysis",
    "sklearn.neighbors._nearest_centroid": "NearestCentroid",
    "sklearn.neighbors._regression": "KNeighborsRegressor RadiusNeighborsRegressor",
    "sklearn.neighbors._unsupervised": "NearestNeighbors",
    "sklearn.neural_network._multilayer_perceptron": (
        "BaseMultilayerPerceptron MLPClassifier MLPRegressor"
    ),
    "sklearn.neural_network._rbm": "BernoulliRBM",
    "sklearn.pipeline": "FeatureUnion Pipeline",
    "sklearn.preprocessing._data": (
        "Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer PowerTransformer "
        "QuantileTransformer RobustScaler StandardScaler"
    ),
    "sklearn.preprocessing._discretization": "KBinsDiscretizer",
    "sklearn.preprocessing._encoders": "OneHotEncoder OrdinalEncoder _BaseEncoder",
    "sklearn.preprocessing._function_transformer": "FunctionTransformer",
    "sklearn.preprocessing._label": "LabelBinarizer LabelEncoder MultiLabelBinarizer",
    "sklearn.preprocessing._polynomial": "PolynomialFeatures SplineTransformer",
    "sklearn.preprocessing._target_encoder": "TargetEncoder",
    "sklearn.random_projection": (
        "BaseRandomProjection GaussianRandomProjection SparseRandomProjection"
    ),
    "sklearn.semi_supervised._label_propagation": (
        "BaseLabelPropagation LabelPropagation LabelSpreading"
    ),
    "sklearn.semi_supervised._self_training": "SelfTrainingClassifier",
    "sklearn.svm._base": "BaseLibSVM BaseSVC",
    "sklearn.svm._classes": "LinearSVC LinearSVR NuSVC NuSVR OneClassSVM SVC SVR",
    "sklearn.tree._classes": (
        "BaseDecisionTree DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier "
        "ExtraTreeRegressor"
    ),
    "sklearn.utils._mocking": (
        "CheckingClassifier NoSampleWeightWrapper _MockEstimatorOnOffPrediction"
    ),
    "sklearn.utils.metaestimators": "_BaseComposition",
    "xgboost.sklearn": (
        "XGBClassifier XGBModel XGBRFClassifier XGBRFRegressor XGBRanker XGBRegressor"
    ),
}
"""Estimators, which are built by their parameters."""

LOSSES: dict[str, str] = {
    "sklearn._loss._loss": (
        "CyAbsoluteError CyExponentialLoss CyHalfBinomialLoss CyHalfGammaLoss "
        "CyHalfPoissonLoss CyHalfSquaredError CyHalfTweedieLoss CyHalfTweedieLossIdentity "
        "CyHuberLoss CyPinballLoss"
    ),
    "sklearn.linear_model._sgd_fast": (
        "EpsilonInsensitive Hinge ModifiedHuber SquaredEpsilonInsensitive SquaredHinge"
    ),
}
"""Compiled losses, which are built by plain arguments."""

OPTIMIZERS: dict[str, str] = {
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer BaseOptimizer SGDOptimizer",
}
"""Optimisers, which consist of their attributes only."""


def listed(module: str, name: str, classes: dict[str, str]) -> bool:
    """Whether one of the lists above has the class."""
    return name in classes.get(module, "").split()
